"""Rung of the loss: recomputed from logits."""

from __future__ import annotations

import math

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.windows import proven_steps
from plumbline.schema.fact import fact
from plumbline.schema.tolerance import floor_of, loss_gap
from plumbline.schema.verdict import Divergence, Finding


def loss(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch if only one side's loss contradicts its logits."""
    left, right = pair.common[step]
    if left.defined_loss is right.defined_loss is None:
        return None  # of a captured loop
    off = (loss_gap(left.defined_loss, left.loss), loss_gap(right.defined_loss, right.loss))
    limit = pair.loss_limit(0)
    if left.loss == right.loss or max(off) <= limit:
        return None
    between = loss_gap(left.loss, right.loss)
    if off[0] > limit and off[1] > limit and between <= limit:
        return None
    finding = Finding(
        check="probe.loss",
        outcome="drift",
        metric=fact("loss.deviation", step=step),
        observed=max(off) if math.isfinite(max(off)) else None,
        limit=limit,
        detail=fact("loss.reference-wrong") if off[0] > off[1] else "",
    )
    evidence = (fact("loss.off", off=off[1], reference=off[0]),)
    likely = [Suspicion("loss", fact("loss.definition"), evidence)]
    if left.loss_dtype != right.loss_dtype:
        why = fact("loss.format", format=right.loss_dtype, reference=left.loss_dtype)
        likely.insert(0, Suspicion("precision", why, evidence))
    elif step < proven_steps(pair) and max(off) <= floor_of("loss", "bf16"):
        likely.insert(0, Suspicion("precision", fact("loss.fewer-bits"), evidence))
    return Mismatch(Divergence(stage="loss", step=step, at="loss"), (finding,), tuple(likely), basis="given")


def undefined_loss(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch if two losses that no definition is known of are further apart than rounding."""
    left, right = pair.common[step]
    limit, gap = pair.loss_limit(step), loss_gap(left.loss, right.loss)
    if left.defined_loss is not None or right.defined_loss is not None or gap <= limit:
        return None
    observed = gap if math.isfinite(gap) else None
    finding = Finding(
        check="captured.loss", outcome="drift", metric=fact("loss.deviation", step=step), observed=observed, limit=limit
    )
    likely = Suspicion("loss", fact("loss.definition"))
    return Mismatch(Divergence(stage="loss", step=step, at="loss"), (finding,), (likely,), basis="computed")
