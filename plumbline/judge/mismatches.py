"""What a rung says: where two runs break apart, and what may have done it."""

from __future__ import annotations

from dataclasses import dataclass, field

from plumbline.schema.verdict import CauseCode, Divergence, Finding

__all__ = ["Mismatch", "Suspicion"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One possible cause of a break, with what speaks for it and what would have to be put back."""

    code: CauseCode
    why: str
    evidence: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Batch fields, modules or parameters at which it shows."""
    shown: bool = False
    """The record shows the cause itself, and infers nothing: there is no value that could be put back."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two runs differ at one rung by more than rounding explains."""

    rung: str
    at: Divergence
    findings: tuple[Finding, ...]
    suspicions: tuple[Suspicion, ...]
    """Most likely first; never empty."""
    independent: bool = field(default=False)
    """No other rung's difference can have brought this one about: it is a cause of its own."""
    since: int | None = None
    """The step from which it must have been there, where it shows by more than rounding only later."""
    is_first_bit: bool = False
    """Everything above the rung is equal to the bit: the cause is at this place, however small the difference."""
