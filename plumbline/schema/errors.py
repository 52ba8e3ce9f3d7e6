"""User-facing errors, each with its exit code.

PlumblineError
├── ConfigurationError   2  wrong usage or configuration
│   └── AccessError      2  credentials or permissions refused
├── InconclusiveError    3  too little evidence; infrastructure failed, nothing is known of training
│   ├── UnavailableError 3  a platform, an endpoint or an object could not be reached in time
│   ├── DiskFullError    3  no room for what has to be written
│   ├── DeviceLostError  3  an accelerator or its driver failed
│   ├── StoppedError     3  the training was asked to stop
│   └── SupersededError  3  a later start of the controller continues the round
└── InvalidInputError    4  missing, non-finite, mismatched or corrupt input
    ├── CorruptDataError 4  bytes that do not match their digest
    └── TrainingError    4  the training itself stopped: a NaN loss, out of memory, labels out of range
"""

from __future__ import annotations

import errno
from enum import Enum, IntEnum

from plumbline.schema.escape import printable, redact


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    PASS = 0
    DRIFT = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INVALID = 4


class PlumblineError(Exception):
    """Base error: problem, location (file, URL or platform), key, and hint."""

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
        # The text may come from a record, and ends on a terminal, in a log or in a run's state.
        return printable(redact(f"{line} (hint: {self.hint})" if self.hint else line))


class ConfigurationError(PlumblineError):
    """Wrong usage or configuration."""


class Refusal(str, Enum):  # StrEnum from Python 3.11 on
    """Reason for refused access, from the cloud service's error code."""

    CREDENTIALS = "credentials"
    ENDED = "ended"
    """A session or a token that was valid."""
    KEY = "key"
    """The key that encrypts the object, and not the bucket."""
    PERMISSIONS = "permissions"
    CLOCK = "clock"
    ARCHIVED = "archived"
    """Not of the caller: the object is in a storage class that cannot be read at once."""
    UNKNOWN = "unknown"


class AccessError(ConfigurationError):
    """Error: credentials or permissions refused. A retry will not help."""

    def __init__(
        self, what: str, *, where: str = "", key: str = "", hint: str = "", refusal: Refusal = Refusal.UNKNOWN
    ) -> None:
        super().__init__(what, where=where, key=key, hint=hint)
        self.refusal = refusal


class InconclusiveError(PlumblineError):
    """Error: infrastructure failed, so training was not judged. Never drift, never pass."""

    exit_code = ExitCode.INCONCLUSIVE


class UnavailableError(InconclusiveError):
    """Error: platform, endpoint or object not reachable in time."""


class DiskFullError(InconclusiveError):
    """Error: not enough disk space."""


class DeviceLostError(InconclusiveError):
    """Error: accelerator, its driver or service failed."""


class StoppedError(InconclusiveError):
    """Error: training was stopped by SIGTERM, SIGINT or shutdown."""


class SupersededError(InconclusiveError):
    """Error: a later controller start took over the round; publish nothing."""


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""`errno`s of a full disk."""


WRONG_PATH = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG,
})  # fmt: skip
"""`errno`s of a wrong path from the user, instead of a failure."""


class InvalidInputError(PlumblineError):
    """Error: missing, non-finite, mismatched or corrupt input."""

    exit_code = ExitCode.INVALID


class CorruptDataError(InvalidInputError):
    """Error: bytes do not match their digest or length."""


class TrainingError(InvalidInputError):
    """Error: training failed. `where` contains step and place."""


RECORD_CODES: tuple[tuple[type[Exception], str], ...] = (
    (AccessError, "access"),
    (DiskFullError, "disk-full"),
    (DeviceLostError, "device-lost"),
    (StoppedError, "stopped"),
    (InconclusiveError, "unavailable"),
    (ConfigurationError, "setting"),
    (TrainingError, "setting"),
    (InvalidInputError, "data"),
    (PlumblineError, "error"),
    (MemoryError, "out-of-memory"),
)
"""Record code of each error class, subclasses first."""

INFRASTRUCTURE = frozenset({"access", "disk-full", "device-lost", "unavailable", "stopped"})
"""Record codes of infrastructure failures: the training itself may be correct."""


def memory_hint(part: str) -> str:
    """Return workload settings that reduce a part's memory use."""
    if part == "probe":
        return "set a smaller probe.micro_batch"
    return "set more optimizer.accumulation_steps, or a smaller batch_size or sequence_length"


def record_code(error: Exception) -> str:
    """Return the code that a record stores for `error`."""
    if isinstance(error, OSError) and not isinstance(error, PlumblineError):
        return "disk-full" if error.errno in DISK_FULL else "unavailable"
    return next((code for kind, code in RECORD_CODES if isinstance(error, kind)), "error")
