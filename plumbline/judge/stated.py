"""Check one record against its spec, its own numbers, and the definitions of its steps.

The checks need no reference: platforms that share a fault agree with each other. Without them, 8 of 77 shared faults
pass (ADR 0036).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, repeat
from typing import Any, Literal

from plumbline.judge.mismatches import CODES, Mismatch, Suspicion
from plumbline.judge.rungs.log import Trained, batches_of_probe, log_of
from plumbline.judge.rungs.production import checked
from plumbline.judge.rungs.proven import unproven
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.captured import captured
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PartName
from plumbline.schema.stage import Stage
from plumbline.schema.tolerance import clipping_limit, limit, loss_gap, relative
from plumbline.schema.verdict import CauseCode, Divergence, Finding

Check = Callable[[LoadedRecord], Mismatch | None]


def contradiction(loaded: LoadedRecord, part: str) -> Mismatch | None:
    """Return the first contradiction within one part of a training; values of an experiment are imposed."""
    if loaded.record.experiment is not None or getattr(loaded.record.evidence, part) is None:
        return None
    return next((found for check in _CHECKS[part] if (found := check(loaded)) is not None), None)


def _loss(loaded: LoadedRecord) -> Mismatch | None:
    """Return a loss of the probe that contradicts the record's own logits and labels."""
    record = loaded.record
    if record.evidence.probe is None or record.spec.probe is None:
        return None
    most = limit("loss", record.spec.probe.precision)
    log = record.evidence.probe
    for step, (defined, own) in enumerate(zip(log.defined_losses, log.losses, strict=False)):
        # A batch without a label has no loss.
        if defined is not None and (off := loss_gap(defined, own)) > most:
            return _mismatch("loss", "loss", step, "loss", fact("stated.loss", step=step, off=off))
    return None


def _formula(loaded: LoadedRecord) -> Mismatch | None:
    """Return a tensor of `speed` that is not what the plain model computes."""
    found = next((each for each in checked(loaded) if each.is_over), None)
    if found is None:
        return None
    stage, name = found.stage, found.name
    compiled, plain = (
        fact("production.compiled", name=name, stage=stage),
        fact("production.formula", name=name, stage=stage),
    )
    numbers = {"observed": found.error, "limit": found.limit}
    return _mismatch(CODES[stage], stage, None, name, compiled if found.is_compiled else plain, shown=True, **numbers)


def _clipping(part: Trained) -> Check:
    """Return the check of a log's gradient norms against the definition of clipping."""

    def check(loaded: LoadedRecord) -> Mismatch | None:
        log, most = log_of(loaded, part), loaded.record.spec.optimizer.max_grad_norm
        limit = limits.PRODUCTION_FACTOR * clipping_limit("fp32", loaded.record.evidence.model)
        norms = zip(log.gradient_norms, log.clipped_norms, strict=False) if log is not None else ()
        for step, (norm, clipped) in enumerate(norms):
            if norm is not None and (gap := relative(min(norm, most), clipped)) > limit:
                why = fact("gradient.clipping", norm=norm, clipped=clipped)
                return _mismatch("gradient", "clipped", step, "clipping", why, observed=gap, limit=limit)
        return None

    return check


def _dropout(part: Trained) -> Check:
    """Return the check of a built model's dropout rate against the spec."""

    def check(loaded: LoadedRecord) -> Mismatch | None:
        log, spec = log_of(loaded, part), getattr(loaded.record.spec, part)
        # A family may have layers that never drop an element.
        built = set(log.dropout or ()) if log is not None else set[float]()
        if spec is None or not built or built - {0.0} == {spec.dropout} - {0.0}:
            return None
        rates = ", ".join(map(str, sorted(built)))
        return _mismatch(
            "rng", "rng", 0, "dropout", fact("stated.dropout", part=part, dropout=rates, wanted=spec.dropout)
        )

    return check


def _generators(loaded: LoadedRecord) -> Mismatch | None:
    """Return steps of `speed` that drew dropout and left the random generators where they had left them before."""
    log = log_of(loaded, "speed")
    if log is None or not any(log.dropout or ()):
        return None
    for (done, states), (later, others) in pairwise(log.states.items()):
        if states == others:
            return _mismatch("rng", "rng", done, "random generators", fact("stated.generators", step=done, later=later))
    return None


def _update(part: PartName) -> Check:
    """Return the check of a log for updates that wrongly left the weights unchanged."""

    def check(loaded: LoadedRecord) -> Mismatch | None:
        # A captured log sums a sample of the weights.
        if (log := log_of(loaded, part)) is None or captured(loaded.record.spec):
            return None
        for (done, mark), (later, other) in pairwise(sorted(log.weights)):
            norms = log.gradient_norms[done:later] or repeat(1.0)  # an incomplete log has none
            rates = (rate if isinstance(rate, tuple) else (rate,) for rate in log.learning_rates[done:later])
            if mark == other and any(any(a) and b for a, b in zip(rates, norms, strict=False)):
                return _unchanged(part, done)
        return None

    return check


def _unchanged(part: str, step: int) -> Mismatch:
    return _mismatch("optimizer", "optimizer", step, "weights", fact("stated.update", part=part, step=step))


def _mode(part: Literal["probe", "learn"]) -> Check:
    """Return the check of evaluations that ran in training mode."""

    def check(loaded: LoadedRecord) -> Mismatch | None:
        probe, learn = loaded.record.evidence.probe, loaded.record.evidence.learn
        of_probe = (probe.evaluation,) if probe is not None else ()
        for each in of_probe if part == "probe" else (learn.evaluations if learn is not None else ()):
            if each is not None and each.training_mode:
                why = fact("evaluation.mode", mode="training")
                step = each.step if part == "learn" else None
                return _mismatch("evaluation", "evaluation", step, "training mode", why)
        return None

    return check


def _proof(part: str) -> Check:
    """Return the check of a part's steps against their definitions."""
    return lambda loaded: unproven(loaded.record, part)


_CHECKS: dict[str, tuple[Check, ...]] = {
    "probe": (_loss, _update("probe"), _mode("probe")),
    "speed": (
        batches_of_probe,
        _proof("speed"),
        _formula,
        _clipping("speed"),
        _dropout("speed"),
        _generators,
        _update("speed"),
    ),
    "learn": (_proof("learn"), _clipping("learn"), _dropout("learn"), _update("learn"), _mode("learn")),
}
"""Checks of each part, in the order of consequence; the walk checks the probe's own steps."""


def _mismatch(
    code: CauseCode, stage: Stage, step: int | None, at: str, why: Statement, *, shown: bool = False, **numbers: Any
) -> Mismatch:
    finding = Finding(check=f"stated.{stage}", outcome="drift", metric=fact("stated.by-itself"), detail=why, **numbers)
    place = Divergence(stage=stage, step=step, at=at)
    return Mismatch(place, (finding,), (Suspicion(code, why, shown=shown),), basis="stated")
