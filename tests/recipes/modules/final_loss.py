"""Gate of the recipe in CONTRIBUTING.md: the last loss against the suite's `loss_rise`."""

from __future__ import annotations

from plumbline.judge.gates.gate import GateRequest, GateResult
from plumbline.judge.pair import Pair
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Finding


def final_loss_gate(pair: Pair, request: GateRequest) -> GateResult:
    """Judge the last loss of the `learn` part."""
    sides = [side.record.evidence.learn for side in (pair.reference, pair.candidate)]
    ours, theirs = (side.losses[-1] if side is not None and side.losses else None for side in sides)
    if ours is None or theirs is None:
        return GateResult()
    rise, limit = theirs - ours, request.gates.loss_rise  # type: ignore[attr-defined]
    finding = Finding(
        check="learn.final_loss", outcome="drift" if rise > limit else "pass", metric=fact("final-loss.rise"),
        observed=rise, limit=limit, unit="nats", detail=fact("final-loss.values", loss=theirs, reference=ours),
    )  # fmt: skip
    return GateResult((finding,))
