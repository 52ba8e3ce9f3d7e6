"""Rung of the loss: recomputed from logits, and of a curve by its size."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion, by_itself, differs, of_log
from plumbline.judge.pair import Pair, log_of
from plumbline.judge.rungs.windows import proven_steps
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.fact import fact
from plumbline.schema.spec import PartName
from plumbline.schema.tolerance import floor_of, loss_gap
from plumbline.schema.tolerance import limit as limit_of
from plumbline.schema.verdict import Divergence


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
    at, metric = Divergence(stage="loss", step=step, at="loss"), fact("loss.deviation", step=step)
    detail = fact("loss.reference-wrong") if off[0] > off[1] else ""
    evidence = (fact("loss.off", off=off[1], reference=off[0]),)
    likely = [Suspicion("loss", fact("loss.definition"), evidence)]
    if left.loss_dtype != right.loss_dtype:
        why = fact("loss.format", format=right.loss_dtype, reference=left.loss_dtype)
        likely.insert(0, Suspicion("precision", why, evidence))
    elif step < proven_steps(pair) and max(off) <= floor_of("loss", "bf16"):
        likely.insert(0, Suspicion("precision", fact("loss.fewer-bits"), evidence))
    return differs(at, "probe.loss", metric, *likely, observed=max(off), limit=limit, detail=detail)


def undefined_loss(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch if two losses that no definition is known of are further apart than rounding."""
    left, right = pair.common[step]
    limit, gap = pair.loss_limit(step), loss_gap(left.loss, right.loss)
    if left.loss is right.loss is None:
        return None  # the loop shows none
    if left.defined_loss is not None or right.defined_loss is not None or gap <= limit:
        return None
    at, metric = Divergence(stage="loss", step=step, at="loss"), fact("loss.deviation", step=step)
    likely = Suspicion("loss", fact("loss.definition"))
    return differs(at, "captured.loss", metric, likely, basis="computed", observed=gap, limit=limit)


def first_loss(pair: Pair, part: PartName) -> Mismatch | None:
    """Return the first logged loss that differs by more than rounding can explain."""
    logs = pair.logs(part)
    left, right = (log.losses for log in logs) if logs is not None else ((), ())
    if logs is None or None in left or None in right:
        return None
    ours, theirs = left[0] or 0.0, right[0] or 0.0
    if loss_gap(ours, theirs) > limit_of("gradient", pair.reference.record.spec.precision_of(part)):  # of the logits
        why = fact("log.first-loss", loss=theirs, reference=ours)
        return of_log(part, Divergence(stage="loss", step=0, at="loss"), "unattributed", why)
    most = limits.HIGHEST_LOSS * max(abs(loss) for loss in left if loss is not None)
    step = next((step for step, loss in enumerate(right) if loss is not None and abs(loss) > most), None)
    if step is None:
        return None
    why = fact("log.loss-too-large", step=step, loss=right[step], most=most)
    return of_log(part, Divergence(stage="loss", step=step, at="loss"), "unattributed", why)


def own_loss(loaded: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return a loss that contradicts the record's own logits and labels."""
    log, most = log_of(loaded, part), limit_of("loss", loaded.record.spec.precision_of(part))
    pairs = zip(log.defined_losses, log.losses, strict=False) if log is not None else ()
    for step, (defined, own) in enumerate(pairs):
        # A batch without a label has no loss.
        if defined is not None and (off := loss_gap(defined, own)) > most:
            return by_itself("loss", "loss", step, "loss", fact("stated.loss", step=step, off=off))
    return None
