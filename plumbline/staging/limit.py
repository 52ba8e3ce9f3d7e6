"""Size limit of the local cache."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from plumbline.errors import ConfigurationError
from plumbline.staging.part import disk_errors
from plumbline.variables import variable

__all__ = ["VARIABLE", "cache_limit"]

VARIABLE = "PLUMBLINE_CACHE_MAX"
_DEFAULT = "80%"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:iB|B)?|(\d+(?:\.\d+)?) ?%", re.IGNORECASE)


def cache_limit(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Return the maximum bytes of all objects in the cache `folder`.

    `PLUMBLINE_CACHE_MAX` is a size (`200GiB`) or a share of the disk's size (`60%`); without it, 80% of the disk.

    Raises:
        ConfigurationError: if the variable is neither.
    """
    text = variable(VARIABLE, _DEFAULT, environment)
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not 0 < float(match[3]) <= 100):
        hint = "give a size such as 200GiB, or a share of the disk such as 60%"
        raise ConfigurationError(f"{text!r} is not a size", where="environment", key=VARIABLE, hint=hint)
    if match[3]:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with disk_errors(folder):
            return int(shutil.disk_usage(existing).total * float(match[3]) / 100)
    return int(float(match[1]) * _UNITS[match[2].upper()])
