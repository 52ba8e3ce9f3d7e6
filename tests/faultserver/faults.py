"""What can go wrong with one answer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Change",
    "Corrupt",
    "Denied",
    "Fault",
    "FullAnswer",
    "Missing",
    "RedirectLoop",
    "Reset",
    "Stall",
    "Status",
    "Trickle",
    "Truncate",
    "WrongLength",
]


@dataclass(frozen=True)
class Status:
    """An error status, with or without Retry-After."""

    code: int = 503
    retry_after: str = ""


@dataclass(frozen=True)
class Reset:
    """The connection is reset after so many bytes of the body."""

    after: int = 0


@dataclass(frozen=True)
class Truncate:
    """The connection is closed, in good order, after so many bytes of the body."""

    after: int = 0


@dataclass(frozen=True)
class Corrupt:
    """One bit of the body is another."""

    at: int = 0


@dataclass(frozen=True)
class Stall:
    """After so many bytes nothing more comes, and the connection stays open."""

    after: int = 0


@dataclass(frozen=True)
class Trickle:
    """A few bytes at a time, for ever: each read succeeds, and the object never comes."""

    size: int = 64
    seconds: float = 0.05


@dataclass(frozen=True)
class Change:
    """The object becomes another one of the same length, before this answer, and stays so."""


@dataclass(frozen=True)
class FullAnswer:
    """200 with the whole object, where a range was asked for."""


@dataclass(frozen=True)
class WrongLength:
    """The answer tells a length that the object has not."""

    by: int = 1


@dataclass(frozen=True)
class Denied:
    """Expired credentials."""


@dataclass(frozen=True)
class Missing:
    """404."""


@dataclass(frozen=True)
class RedirectLoop:
    """A redirect to itself."""


Fault = (
    Status | Reset | Truncate | Corrupt | Stall | Trickle | Change | FullAnswer | WrongLength | Denied | Missing
    | RedirectLoop
)  # fmt: skip
