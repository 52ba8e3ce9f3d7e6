"""Faults of one HTTP answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """An error status, with or without Retry-After."""

    code: int = 503
    retry_after: str = ""


@dataclass(frozen=True)
class Reset:
    """Reset of the connection after so many bytes of the body."""

    after: int = 0


@dataclass(frozen=True)
class Truncate:
    """Clean close of the connection after so many bytes of the body."""

    after: int = 0


@dataclass(frozen=True)
class Corrupt:
    """One flipped bit of the body."""

    at: int = 0


@dataclass(frozen=True)
class Stall:
    """Stop after so many bytes, with the connection open."""

    after: int = 0


@dataclass(frozen=True)
class Trickle:
    """Endless slow body: each read succeeds, the object is never complete."""

    size: int = 64
    seconds: float = 0.05


@dataclass(frozen=True)
class Change:
    """Permanent replacement of the object by one of the same length."""


@dataclass(frozen=True)
class FullAnswer:
    """Status 200 with the whole object, instead of a range."""


@dataclass(frozen=True)
class WrongLength:
    """Wrong content length."""

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
