"""Changes in the duration of a step's phases. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline import limits
from plumbline.schema.evidence import SpeedEvidence

_PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """Change of a phase's duration, in seconds per step.

    Positive is longer.
    """

    phase: str
    seconds: float


def phase_changes(before: SpeedEvidence, after: SpeedEvidence) -> tuple[PhaseChange, ...]:
    """Return the phases that changed, the largest growth first.

    Empty if either side has no breakdown.
    """
    names = [name for name in _PHASES if name in before.breakdown and name in after.breakdown]
    step = sum(before.breakdown[name] for name in names)
    changes = [PhaseChange(name, after.breakdown[name] - before.breakdown[name]) for name in names]
    kept = [change for change in changes if abs(change.seconds) > limits.LEAST_CHANGE * step]
    return tuple(sorted(kept, key=lambda change: -change.seconds))


def shift_note(before: SpeedEvidence, after: SpeedEvidence) -> str:
    """Describe the phases that changed, and the change in total.

    Empty if none changed.
    """
    changes = phase_changes(before, after)
    if not changes:
        return ""
    total = sum(after.breakdown.get(name, 0.0) - before.breakdown.get(name, 0.0) for name in _PHASES)
    parts = [f"{change.phase} {_milliseconds(change.seconds)}" for change in changes]
    return f"a step against the accepted record: {', '.join(parts)}, all phases {_milliseconds(total)}"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1e3, 3) + 0.0:+.3g} ms"
