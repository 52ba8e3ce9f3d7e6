"""Rung of gradients: before and after clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plumbline.judge.mismatches import Mismatch, Suspicion, by_itself, differs
from plumbline.judge.pair import Pair, TapError, log_of
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.captured import captured
from plumbline.schema.evidence import Tap
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PartName
from plumbline.schema.step_log import LoggedStep
from plumbline.schema.tolerance import clipping_limit, relative
from plumbline.schema.verdict import Divergence


@dataclass(frozen=True, slots=True)
class _Scale:
    factor: float
    residual: float


def frozen(pair: Pair) -> Mismatch | None:
    """Return a mismatch if only one side trains some parameter."""
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None:
        return None
    ours = {p.name: p.trainable for p in left.parameters}
    names = tuple(p.name for p in right.parameters if ours.get(p.name, p.trainable) != p.trainable)
    if not names:
        return None
    state = fact("gradient.trained") if ours[names[0]] is False else fact("gradient.frozen")
    more = fact("gradient.and-more", num=len(names) - 1) if len(names) > 1 else ""
    why = fact("gradient.parameters", name=names[0], state=state, more=more)
    at, metric = Divergence(stage="gradient", step=0, at=names[0]), fact("gradient.one-side-trains")
    suspicion = Suspicion("gradient", why, names=names, shown=True)
    return differs(at, "probe.frozen", metric, suspicion, observed=len(names), limit=0)


def gradient(pair: Pair, step: int) -> Mismatch | None:
    """Return the first parameter, in backward order, with a gradient beyond rounding."""
    errors = pair.errors(step, "gradient")
    over = [error for error in errors if error.over]
    missing = _missing(pair, step) if errors else []
    if missing:
        return _without(missing, step, len(errors))
    added = _added(pair, step) if errors else []
    if added:
        return _without(added, step, len(errors), state=fact("gradient.added"))
    if not over:
        return None
    first = over[-1]
    at, numbers = Divergence(stage="gradient", step=step, at=first.reference.name), first.numbers
    metric = fact("gradient.error", name=at.at, step=step)
    detail = fact("gradient.over", num=len(over), total=len(errors))
    likely = _suspicion(pair, over, len(errors), has_loss=pair.common[step][0].loss is not None)
    return differs(at, "probe.gradient", metric, likely, basis="computed", detail=detail, **numbers)


def _suspicion(pair: Pair, over: list[TapError], count: int, *, has_loss: bool) -> Suspicion:
    names = tuple(error.reference.name for error in over)
    scale = _scale(pair, over)
    lines = [fact("gradient.differ", num=len(over), total=count, largest=max(error.error for error in over))]
    if scale is not None and scale.residual < limits.SAME_RATIO:
        why = fact("gradient.factor", factor=scale.factor)
    elif has_loss:
        why = fact("gradient.different")
    else:
        why = fact("gradient.different-loss")
    return Suspicion("gradient", why, tuple(lines), names)


def _without(missing: list[str], step: int, count: int, *, state: Statement | None = None) -> Mismatch:
    more = fact("gradient.like-more", num=len(missing) - 1) if len(missing) > 1 else ""
    why = fact("gradient.parameters", name=missing[0], state=state or fact("gradient.none"), more=more)
    at, metric = Divergence(stage="gradient", step=step, at=missing[0]), fact("gradient.one-side-has", step=step)
    suspicion = Suspicion("gradient", why, names=tuple(missing), shown=True)
    numbers = {"observed": len(missing), "limit": 0, "detail": fact("gradient.both-have", count=count)}
    return differs(at, "probe.gradient", metric, suspicion, basis="computed", **numbers)


def _missing(pair: Pair, step: int) -> list[str]:
    """Return the parameters that only the reference trains."""
    if pair.probes is None:
        return []
    ours, theirs = (
        {tap.name for tap in probe.taps if tap.step == step and tap.stage == "gradient" and (tap.norm != 0 or side)}
        for side, probe in enumerate(pair.probes)
    )
    over = [error for error in pair.errors(step, "gradient") if error.over]
    vanished = {error.reference.name for error in over if error.candidate.norm == 0}
    if len(vanished) < len(over):
        # Other gradients differ as well: a vanished gradient may be below the smallest number of a shorter format.
        vanished = set()
    lost = ours - theirs | vanished & ours
    return [tap.name for tap in pair.probes[0].taps if tap.name in lost and _at(tap, step)]


def _added(pair: Pair, step: int) -> list[str]:
    """Return the parameters that only the candidate trains."""
    if pair.probes is None:
        return []
    ours = {tap.name for tap in pair.probes[0].taps if _at(tap, step)}
    return [
        tap.name
        for tap in pair.probes[1].taps
        if _at(tap, step) and tap.name not in ours and tap.norm != 0 and "#" not in tap.name
    ]


def _at(tap: Tap, step: int) -> bool:
    return tap.step == step and tap.stage == "gradient"


def _scale(pair: Pair, over: list[TapError]) -> _Scale | None:
    """Fit a constant factor between both sides' gradients."""
    ours, theirs = [], []
    for error in over:
        left, right = error.places
        left_sketch, right_sketch = pair.sketch(0, left), pair.sketch(1, right)
        if left_sketch is None or right_sketch is None:
            return None
        ours.append(left_sketch)
        theirs.append(right_sketch)
    x, y = np.concatenate(ours), np.concatenate(theirs)
    square = float(x @ x)
    if not square or not np.isfinite(y).all():
        return None
    factor = float(x @ y) / square
    return _Scale(factor, float(np.linalg.norm(y - factor * x)) / math.sqrt(square))


def clipping(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch if only one side clipped its gradient norm wrongly."""
    left, right = pair.common[step]
    if captured(pair.reference.record.spec):
        return None  # whose norm is its own
    optimizer = pair.reference.record.spec.optimizer
    off = tuple(_off(side, optimizer.max_grad_norm) for side in (left, right))
    limit = clipping_limit(pair.precision, pair.reference.record.evidence.model)
    if max(off) <= limit or (off[0] > limit and relative(left.clipped_norm, right.clipped_norm) <= limit):
        return None
    why = fact("gradient.clipping", norm=right.gradient_norm, clipped=right.clipped_norm)
    evidence = (fact("gradient.max-norm", maximum=optimizer.max_grad_norm),)
    at, metric = Divergence(stage="clipped", step=step, at="clipping"), fact("gradient.clipping-deviation", step=step)
    suspicion = Suspicion("gradient", why, evidence)
    return differs(at, "probe.clipping", metric, suspicion, observed=max(off), limit=limit)


def _off(side: LoggedStep, most: float) -> float:
    if side.gradient_norm is None and side.clipped_norm is None:
        return 0.0
    if side.gradient_norm is None:
        return math.inf
    return relative(min(side.gradient_norm, most), side.clipped_norm)


def own_clipping(loaded: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return a step whose clipped norm is not what its own norm gives by the definition of clipping."""
    log, most = log_of(loaded, part), loaded.record.spec.optimizer.max_grad_norm
    limit = limits.PRODUCTION_FACTOR * clipping_limit("fp32", loaded.record.evidence.model)
    norms = zip(log.gradient_norms, log.clipped_norms, strict=False) if log is not None else ()
    for step, (norm, clipped) in enumerate(norms):
        if norm is not None and (gap := relative(min(norm, most), clipped)) > limit:
            why = fact("gradient.clipping", norm=norm, clipped=clipped)
            return by_itself("gradient", "clipped", step, "clipping", why, observed=gap, limit=limit)
    return None
