"""Rung of the state between steps: what a run shows to have changed outside its updates."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion, differs
from plumbline.judge.pair import Pair, first_step_apart
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PartName
from plumbline.schema.step_log import Inconsistency
from plumbline.schema.verdict import CauseCode, Divergence

_CODES: dict[str, CauseCode] = {
    "masks": "rng", "generators": "rng", "gradients": "gradient", "learning rate": "schedule", "schedule": "schedule",
}  # fmt: skip
"""Cause by the part of the state; weights and moments are the optimizer's."""


def own_state(pair: Pair, part: PartName, *, parted: bool = False) -> Mismatch | None:
    """Return a mismatch if a run's state changed outside its steps.

    `parted`: of processes whose state differs, which is the consequence of a part that a window may name.
    """
    logs = [getattr(loaded.record.evidence, part) for _, loaded in pair.sides]
    for (side, _), log in zip(pair.sides, logs, strict=True):
        if log is None:
            continue
        for name in log.resumed_wrongly[: 0 if parted else 1]:
            step = log.resumed_at[-1] if log.resumed_at else 0
            why = fact("windows.resumed", side=side, part=name, step=step)
            return _mismatch(part, "resume", _CODES.get(name, "optimizer"), why, (step, name))
        wrong = [found for found in log.inconsistent if (found.event == "processes") is parted]
        for found in sorted(wrong, key=lambda found: (found.step, found.rank))[:1]:
            why = fact(
                f"windows.state-{found.event}", side=side, part=found.part, rank=found.rank, step=found.step,
                training=part,
            )  # fmt: skip
            # Rounding hides it in the losses, which may part far behind.
            parting = first_step_apart(*logs) if parted and None not in logs else None
            evidence = () if parting is None else (fact("windows.curves-part", step=parting, training=part),)
            return _mismatch(part, "state", _code(found), why, (found.step, found.part), *evidence)
    return None


def _code(found: Inconsistency) -> CauseCode:
    if (found.part, found.event) == ("weights", "evaluation"):
        return "evaluation"
    return "weights.init" if found.event == "processes" and not found.step else _CODES.get(found.part, "optimizer")


def _mismatch(
    part: PartName, check: str, code: CauseCode, why: Statement, place: tuple[int, str], *evidence: Statement
) -> Mismatch:  # fmt: skip
    step, name = place
    at, suspicion = Divergence(stage="state", step=step, at=name), Suspicion(code, why, evidence, (name,), shown=True)
    return differs(at, f"{part}.{check}", fact("windows.own-state"), suspicion, observed=name)
