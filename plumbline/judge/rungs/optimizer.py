"""Rung of the update: learning rates, optimizer settings, updates."""

from __future__ import annotations

import math

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.model import restructured
from plumbline.schema import limits
from plumbline.schema.evidence import ProbeEvidence
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.tolerance import relative
from plumbline.schema.verdict import Divergence, Finding

_SCHEDULED = frozenset({"lr", "initial_lr"})
_IMPLEMENTATION = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings of how the update is computed, not of its value."""

_ADAMW = frozenset({"class", "weight_decay", "betas.0", "betas.1", "eps"})
"""Settings that decide AdamW's update in every version of torch; a new version may add others at their defaults."""
_ABSENT = "absent"

_NAMED = 4
_Rate = float | tuple[float, ...] | None


def schedule(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch of the learning rate at `step`."""
    found = other_rates(*(side.learning_rate for side in pair.common[step]))
    if found is None:
        return None
    rate, ours, theirs = found
    finding = Finding(
        check="probe.learning_rate",
        outcome="drift",
        metric=fact("optimizer.rate-at", step=step),
        observed=theirs,
        limit=ours,
    )
    why = fact("optimizer.rate", step=step, rate=rate)
    at = Divergence(stage="schedule", step=step, at="learning_rate")
    return Mismatch(at, (finding,), (Suspicion("schedule", why),), basis="given")


def other_rates(ours: _Rate, theirs: _Rate) -> tuple[Statement, float | None, float | None] | None:
    """Describe two steps' different learning rates, and return those of the groups that differ most."""
    left, right = (() if each is None else each if isinstance(each, tuple) else (each,) for each in (ours, theirs))
    if len(left) != len(right):
        left, right = tuple(sorted(set(left))), tuple(sorted(set(right)))
    if len(left) != len(right):
        text = fact("optimizer.rates", rates=_listed(right), reference=_listed(left))
        return text, max(left, default=None), max(right, default=None)
    differing = [pair for pair in zip(left, right, strict=True) if relative(*pair) > limits.EXACT]
    if not differing:
        return None
    one, other = max(differing, key=max)
    return fact("optimizer.one-rate", rate=other, reference=one), one, other


def _listed(rates: tuple[float, ...]) -> str:
    return ", ".join(map(str, rates))


def settings(pair: Pair) -> Mismatch | None:
    """Return a mismatch of per-parameter optimizer settings: weight decay, betas, eps."""
    if pair.probes is None:
        return None
    left, right = (_by_parameter(probe) for probe in pair.probes)
    lines = []
    models = (pair.reference.record.evidence.model, pair.candidate.record.evidence.model)
    fixed = {p.name for model in models if model for p in model.parameters if not p.trainable} | restructured(pair)
    for name, ours in left.items():
        theirs = right.get(name)
        if theirs is None and name not in fixed:
            lines.append((name, fact("optimizer.no-group", name=name)))
        if theirs is None:
            continue
        shared = ours.keys() & theirs.keys() | (_ADAMW & (ours.keys() | theirs.keys()))
        differing = [key for key in sorted(shared) if ours.get(key, _ABSENT) != theirs.get(key, _ABSENT)]
        lines += [
            (
                name,
                fact(
                    "optimizer.setting",
                    key=key,
                    name=name,
                    value=theirs.get(key, _ABSENT),
                    reference=ours.get(key, _ABSENT),
                ),
            )
            for key in differing
        ]
    lines += [
        (name, fact("optimizer.additional", name=name)) for name in right if name not in left and name not in fixed
    ]
    if not lines:
        return None
    finding = Finding(
        check="probe.optimizer",
        outcome="drift",
        metric=fact("optimizer.different-settings"),
        observed=len(lines),
        limit=0,
        detail=joined(line for _, line in lines[:_NAMED]),
    )
    evidence = tuple(line for _, line in lines[:_NAMED])
    suspicion = Suspicion("optimizer", fact("optimizer.settings"), evidence)
    at = Divergence(stage="optimizer", step=0, at=lines[0][0])
    return Mismatch(at, (finding,), (suspicion,), basis="given")


def _by_parameter(probe: ProbeEvidence) -> dict[str, dict[str, object]]:
    return {
        name: {k: v for k, v in group.settings.items() if k not in _SCHEDULED | _IMPLEMENTATION}
        for group in probe.optimizer
        for name in group.parameters
    }


def update(pair: Pair, step: int) -> Mismatch | None:
    """Return the first parameter that differs beyond rounding after the step."""
    over = [error for error in pair.errors(step, "optimizer") if error.over]
    if not over:
        return None
    first = max(over, key=lambda error: error.ratio)
    finding = Finding(
        check="probe.update",
        outcome="drift",
        metric=fact("optimizer.error", name=first.reference.name, step=step),
        observed=first.error if math.isfinite(first.error) else None,
        limit=first.finite_limit,
        detail=fact("optimizer.over", num=len(over)),
    )
    evidence = (fact("optimizer.off", name=first.reference.name, error=first.error, limit=first.limit),)
    why = fact("optimizer.weights")
    at = Divergence(stage="optimizer", step=step, at=first.reference.name)
    likely = (Suspicion("optimizer", why, evidence), after_clipping(step))
    return Mismatch(at, (finding,), likely)


def after_clipping(step: int) -> Suspicion:
    """Return the suspicion that gradients changed after their recording."""
    why = fact("optimizer.changed-gradients", step=step)
    return Suspicion("gradient", why, (fact("optimizer.recorded-after-clipping"),))
