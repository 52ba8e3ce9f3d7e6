"""`cache_child.py` under NFSv4's lock rules, which refuse some locks with EBADF."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.contract.cache_child import main

_real = fcntl.flock


def flock(file: object, operation: int) -> None:
    """Lock like NFSv4: shared needs a readable, exclusive a writable file."""
    descriptor = file if isinstance(file, int) else file.fileno()  # type: ignore[attr-defined]
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    needed = os.O_RDONLY if operation & fcntl.LOCK_SH else os.O_WRONLY
    if not operation & fcntl.LOCK_UN and mode not in (needed, os.O_RDWR):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _real(descriptor, operation)


fcntl.flock = flock  # type: ignore[assignment]

if __name__ == "__main__":
    main(*sys.argv[1:])
