"""Locks that a worker's environment was installed from, kept for an A/B that goes back to one of them.

A record names the baseline's packages and versions. Their hashes are in the lock of that night only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from plumbline.errors import PlumblineError
from plumbline.schema.base import read_model
from plumbline.upgrade.locks import LockFiles, Pin, load_lock, parse_lock

_FOLDER = "locks"
_MOST = 30
"""Number of locks to keep: about a month of nightly upgrades."""


def keep_lock(root: Path, path: Path) -> None:
    """Keep the lock at `path` below `root`, with the files that it includes.

    Raise `ConfigurationError` for a file that cannot be read.
    """
    lock = load_lock(path)
    kept = root / _FOLDER / f"{lock.digest}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}.part")
    part.write_text(lock.model_dump_json(), encoding="utf-8")
    part.replace(kept)  # also where it exists: the newest ones stay
    for old in _newest_first(root)[_MOST:]:
        old.unlink(missing_ok=True)


def hashed_pins(root: Path) -> dict[tuple[str, str], Pin]:
    """Return the pins with hashes of all kept locks by (name, canonical version); a newer lock's pin counts.

    A lock that can no longer be read is skipped.
    """
    pins: dict[tuple[str, str], Pin] = {}
    for path in reversed(_newest_first(root)):
        with suppress(PlumblineError):
            lock = parse_lock(read_model(LockFiles, path))
            pins |= {(pin.name, pin.identity[0]): pin for pin in lock.pins.values() if pin.is_hashed}
    return pins


def _newest_first(root: Path) -> list[Path]:
    return sorted((root / _FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
