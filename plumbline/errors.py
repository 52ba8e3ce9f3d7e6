"""The errors that a user can mend, and the exit code that each one leaves.

PlumblineError
├── ConfigurationError   2  wrong usage or configuration
│   └── AccessError      2  credentials or permissions refused
├── InconclusiveError    3  too little evidence; infrastructure failed, nothing is known of training
│   ├── UnavailableError 3  a platform, an endpoint or an object could not be reached in time
│   ├── DiskFullError    3  no room for what has to be written
│   └── StoppedError     3  the training was asked to stop
└── InvalidInputError    4  missing, non-finite, mismatched or corrupt input
    ├── CorruptDataError 4  bytes that do not match their digest
    └── TrainingError    4  the training itself stopped: a NaN loss, out of memory, labels out of range
"""

from __future__ import annotations

import errno
from enum import IntEnum

__all__ = [
    "DISK_FULL",
    "INFRASTRUCTURE",
    "RECORD_CODES",
    "WRONG_PATH",
    "AccessError",
    "ConfigurationError",
    "CorruptDataError",
    "DiskFullError",
    "ExitCode",
    "InconclusiveError",
    "InvalidInputError",
    "PlumblineError",
    "StoppedError",
    "TrainingError",
    "UnavailableError",
    "record_code",
]


class ExitCode(IntEnum):
    """What a command leaves behind, as DESIGN.md binds it."""

    PASS = 0
    DRIFT = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INVALID = 4


class PlumblineError(Exception):
    """One clear line: what is wrong, where (file, URL or platform), which key, and how to mend it."""

    exit_code = ExitCode.USAGE

    def __init__(self, what: str, *, where: str = "", key: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.key = key
        self.hint = hint

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.key) if part)
        line = f"{place}: {self.what}" if place else self.what
        return f"{line} ({self.hint})" if self.hint else line


class ConfigurationError(PlumblineError):
    """Wrong usage, or a configuration that cannot be meant."""


class AccessError(ConfigurationError):
    """Credentials or permissions were refused; trying again will not help."""


class InconclusiveError(PlumblineError):
    """Infrastructure failed, so nothing is known about training. Never a drift, never a pass."""

    exit_code = ExitCode.INCONCLUSIVE


class UnavailableError(InconclusiveError):
    """A platform, endpoint or object could not be reached within its deadline."""


class DiskFullError(InconclusiveError):
    """There is no room for what has to be written."""


class StoppedError(InconclusiveError):
    """The training was asked to stop: by SIGTERM, SIGINT or the end of its machine."""


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The `errno`s by which the operating system says so."""


WRONG_PATH = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG,
})  # fmt: skip
"""What it says of a path that somebody gave and that cannot be meant: nothing failed by itself."""


class InvalidInputError(PlumblineError):
    """Missing, non-finite, mismatched or corrupt input."""

    exit_code = ExitCode.INVALID


class CorruptDataError(InvalidInputError):
    """Bytes that do not match the digest or the length they were promised with."""


class TrainingError(InvalidInputError):
    """The training itself could not go on; `where` says at which step and place."""


RECORD_CODES: tuple[tuple[type[Exception], str], ...] = (
    (AccessError, "access"),
    (DiskFullError, "disk-full"),
    (StoppedError, "stopped"),
    (InconclusiveError, "unavailable"),
    (ConfigurationError, "setting"),
    (TrainingError, "setting"),
    (InvalidInputError, "data"),
    (PlumblineError, "error"),
    (MemoryError, "out-of-memory"),
)
"""The code that a record keeps of each class of error, the narrower class first."""

INFRASTRUCTURE = frozenset({"access", "disk-full", "unavailable", "stopped"})
"""The codes that describe the machine and its services. The training itself is not known to be wrong."""


def record_code(error: Exception) -> str:
    """Return the code that a record keeps of `error`; an unknown class is `error`."""
    if isinstance(error, OSError) and not isinstance(error, PlumblineError):
        return "disk-full" if error.errno in DISK_FULL else "unavailable"
    return next((code for kind, code in RECORD_CODES if isinstance(error, kind)), "error")
