"""Files beside the code that the local stack needs: in a checkout below its root, in an installation below `share`."""

from __future__ import annotations

import sys
from pathlib import Path

from plumbline.doctor.driver import cuda_of_torch
from plumbline.errors import ConfigurationError

__all__ = ["lock_in_use", "resource"]

_ROOT = Path(__file__).resolve().parents[2]
_SHARE = Path(sys.prefix) / "share" / "plumbline"


def resource(name: str) -> Path:
    """Return the path of a file or folder of the distribution, named as in the repository."""
    for path in (_ROOT / name, _SHARE / name):
        if path.exists():
            return path
    raise ConfigurationError("is not installed", where=str(_SHARE / name), hint="reinstall the package")


def lock_in_use() -> Path:
    """Return the lock that this environment was installed from: the GPU lock where torch came with CUDA."""
    return resource("locks/trainer-cuda.txt" if cuda_of_torch() else "locks/all.txt")
