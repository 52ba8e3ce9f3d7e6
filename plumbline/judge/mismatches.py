"""A rung's result: the place where two runs differ, and its possible causes."""

from __future__ import annotations

from dataclasses import dataclass, field

from plumbline.schema.verdict import CauseCode, Divergence, Finding

__all__ = ["Mismatch", "Suspicion"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Possible cause of a mismatch, with its evidence and the values to restore."""

    code: CauseCode
    why: str
    evidence: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Batch fields, modules or parameters that differ."""
    shown: bool = False
    """Whether the record shows the cause directly: no value has to be restored."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Difference of two runs at one rung, beyond rounding."""

    rung: str
    at: Divergence
    findings: tuple[Finding, ...]
    suspicions: tuple[Suspicion, ...]
    """Most likely first; never empty."""
    independent: bool = field(default=False)
    """Whether no other rung's difference can be the reason: the mismatch is a separate cause."""
    since: int | None = None
    """First step of the difference, if only a later step shows more than rounding."""
    is_portable: bool = False
    """Whether portable bits show the difference: no rounding explains it, and all portable bits above are equal."""
    is_first_bit: bool = False
    """Whether all evidence above is bitwise equal: the cause is at this place, however small the difference."""
