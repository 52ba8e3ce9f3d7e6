"""Rung of the recipe in CONTRIBUTING.md: the factor that scales each step's loss."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion, differs
from plumbline.judge.pair import Pair
from plumbline.schema.fact import fact
from plumbline.schema.spec import PartName
from plumbline.schema.verdict import Divergence


def loss_scale(pair: Pair, step: int, part: PartName) -> Mismatch | None:
    """Return a mismatch of the factor that scales the loss at `step`."""
    ours, theirs = (side.loss_scale for side in pair.at(part, step))
    if ours == theirs:
        return None
    suspicion = Suspicion("gradient", fact("gradient.scale", scale=theirs, reference=ours), shown=True)
    at, metric = Divergence(stage="gradient", step=step, at="loss scale"), fact("gradient.scale-at", step=step)
    return differs(at, f"{part}.loss_scale", metric, suspicion, observed=theirs, limit=ours)
