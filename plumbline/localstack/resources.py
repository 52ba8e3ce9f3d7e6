"""Files beside the code that the local stack needs: in a checkout below its root, in an installation below `share`."""

from __future__ import annotations

import sys
from pathlib import Path

from plumbline.errors import ConfigurationError

__all__ = ["resource"]

_ROOT = Path(__file__).resolve().parents[2]
_SHARE = Path(sys.prefix) / "share" / "plumbline"


def resource(name: str) -> Path:
    """Return the path of a file or folder of the distribution, named as in the repository."""
    for path in (_ROOT / name, _SHARE / name):
        if path.exists():
            return path
    raise ConfigurationError("is not installed", where=str(_SHARE / name), hint="reinstall the package")
