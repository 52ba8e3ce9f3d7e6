"""Data files of the local stack, in a checkout or an installation."""

from __future__ import annotations

import sys
from pathlib import Path

from plumbline.doctor.place import cuda_of_torch
from plumbline.errors import ConfigurationError

_ROOT = Path(__file__).resolve().parents[2]
_SHARE = Path(sys.prefix) / "share" / "plumbline"


def resource(name: str) -> Path:
    """Return the path of a distribution's file, named as in the repository."""
    for path in (_ROOT / name, _SHARE / name):
        if path.exists():
            return path
    raise ConfigurationError("is not installed", where=str(_SHARE / name), hint="reinstall the package")


def lock_in_use() -> Path:
    """Return this environment's lock file; the GPU lock if torch has CUDA."""
    return resource("locks/trainer-cuda.txt" if cuda_of_torch() else "locks/all.txt")
