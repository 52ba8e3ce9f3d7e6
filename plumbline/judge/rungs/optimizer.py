"""Rung of the update: learning rates, optimizer settings, updates."""

from __future__ import annotations

from itertools import pairwise, repeat

from plumbline.judge.mismatches import Mismatch, Suspicion, by_itself, differs, of_log
from plumbline.judge.pair import Pair, log_of
from plumbline.judge.rungs.model import restructured
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.captured import captured
from plumbline.schema.evidence import ProbeEvidence
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.spec import PartName
from plumbline.schema.tolerance import relative
from plumbline.schema.verdict import Divergence

_SCHEDULED = frozenset({"lr", "initial_lr"})
_IMPLEMENTATION = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings of how the update is computed, not of its value."""

_ADAMW = frozenset({"class", "weight_decay", "betas.0", "betas.1", "eps"})
"""Settings that decide AdamW's update in every version of torch; a new version may add others at their defaults."""
_ABSENT = "absent"

_NAMED = 4
_Rate = float | tuple[float, ...] | None


def schedule(pair: Pair, step: int, part: PartName = "probe") -> Mismatch | None:
    """Return a mismatch of the learning rate at `step`."""
    found = _other_rates(*(side.learning_rate for side in pair.at(part, step)))
    if found is None:
        return None
    rate, ours, theirs = found
    if part != "probe":
        is_resumed = any(step in log.resumed_at for log in (pair.logs(part) or ())[1:])
        why = fact("log.rate", step=step, rate=rate, resumed=fact("log.at-resume", step=step) if is_resumed else "")
        return of_log(part, Divergence(stage="schedule", step=step, at="learning rate"), "schedule", why, shown=True)
    suspicion = Suspicion("schedule", fact("optimizer.rate", step=step, rate=rate))
    at, metric = Divergence(stage="schedule", step=step, at="learning_rate"), fact("optimizer.rate-at", step=step)
    return differs(at, "probe.learning_rate", metric, suspicion, observed=theirs, limit=ours)


def _other_rates(ours: _Rate, theirs: _Rate) -> tuple[Statement, float | None, float | None] | None:
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
        for key in differing:
            value, known = theirs.get(key, _ABSENT), ours.get(key, _ABSENT)
            lines.append((name, fact("optimizer.setting", key=key, name=name, value=value, reference=known)))
    lines += [
        (name, fact("optimizer.additional", name=name)) for name in right if name not in left and name not in fixed
    ]
    if not lines:
        return None
    named = tuple(line for _, line in lines[:_NAMED])
    suspicion = Suspicion("optimizer", fact("optimizer.settings"), named)
    at, metric = Divergence(stage="optimizer", step=0, at=lines[0][0]), fact("optimizer.different-settings")
    return differs(at, "probe.optimizer", metric, suspicion, observed=len(lines), limit=0, detail=joined(named))


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
    at, name = Divergence(stage="optimizer", step=step, at=first.reference.name), first.reference.name
    evidence = (fact("optimizer.off", name=name, error=first.error, limit=first.limit),)
    likely = (Suspicion("optimizer", fact("optimizer.weights"), evidence), after_clipping(step))
    metric, detail = fact("optimizer.error", name=name, step=step), fact("optimizer.over", num=len(over))
    return differs(at, "probe.update", metric, *likely, basis="computed", detail=detail, **first.numbers)


def after_clipping(step: int) -> Suspicion:
    """Return the suspicion that gradients changed after their recording."""
    why = fact("optimizer.changed-gradients", step=step)
    return Suspicion("gradient", why, (fact("optimizer.recorded-after-clipping"),))


def own_update(loaded: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return an update that wrongly left the weights unchanged."""
    # A captured log sums a sample of the weights.
    if (log := log_of(loaded, part)) is None or captured(loaded.record.spec):
        return None
    for (done, mark), (later, other) in pairwise(sorted(log.weights)):
        norms = log.gradient_norms[done:later] or repeat(1.0)  # an incomplete log has none
        rates = (rate if isinstance(rate, tuple) else (rate,) for rate in log.learning_rates[done:later])
        if mark == other and any(any(a) and b for a, b in zip(rates, norms, strict=False)):
            why = fact("stated.update", part=part, step=done)
            return by_itself("optimizer", "optimizer", done, "weights", why)
    return None
