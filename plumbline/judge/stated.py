"""Consistency checks of one record against its spec and its own numbers.

The checks need no reference: platforms that share a fault agree with each other. Without them, 8 of 77 shared faults
pass (ADR 0036).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

from plumbline.judge.gates.gate import GateResult
from plumbline.judge.rungs.proven import PARTS, unproven_part
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.tolerance import limit, relative
from plumbline.schema.verdict import Cause, CauseCode, Divergence, Finding


def contradiction(record: RunRecord, parts: tuple[str, ...] = PARTS[1:]) -> GateResult | None:
    """Return the first contradiction within one record.

    `parts` are those in which nothing else differs: what their own steps show would follow from it.
    """
    if record.experiment is not None:
        return None
    found = (_losses(record), _dropout(record), _proofs(record, parts), _updates(record), _modes(record))
    return next(chain(*found), None)


def _losses(record: RunRecord) -> Iterator[GateResult]:
    """Yield a loss that contradicts the record's own logits and labels."""
    probe, spec = record.evidence.probe, record.spec.probe
    if probe is None or spec is None:
        return
    most = limit("loss", spec.precision)
    for step in probe.steps:
        # A batch without a label has no loss.
        if step.loss_reference is not None and (off := relative(step.loss_reference, step.loss)) > most:
            at = Divergence(stage="loss", step=step.step, at="loss")
            yield _drift("loss", at, fact("stated.loss", step=step.step, off=off))


def _dropout(record: RunRecord) -> Iterator[GateResult]:
    """Yield a built model's dropout rate that contradicts the spec."""
    speed, learn = record.evidence.speed, record.evidence.learn
    settings = speed.trail.settings if speed is not None and speed.trail is not None else {}
    rates = [float(rate) for rate in str(settings.get("dropout") or "").split(", ") if rate]
    found = (("speed", record.spec.speed, rates), ("learn", record.spec.learn, learn.dropout if learn else None))
    for part, spec, built in found:
        # A family may have layers that never drop an element.
        if spec is not None and built and {*built} - {0.0} != {spec.dropout} - {0.0}:
            why = fact("stated.dropout", part=part, dropout=", ".join(map(str, built)), wanted=spec.dropout)
            yield _drift("rng", Divergence(stage="rng", step=0, at="dropout"), why)


def _proofs(record: RunRecord, parts: tuple[str, ...]) -> Iterator[GateResult]:
    """Yield the first tensor that contradicts its own definition."""
    found = unproven_part(record, parts)
    if found is not None:
        yield found


def _updates(record: RunRecord) -> Iterator[GateResult]:
    """Yield optimizer steps that wrongly left the weights unchanged."""
    probe, speed = record.evidence.probe, record.evidence.speed
    for before, step in pairwise(probe.steps if probe is not None else ()):
        if before.weights_sha256 == step.weights_sha256 and any(step.learning_rates) and step.gradient_norm:
            yield _lost("probe", step.step)
    if speed is not None and speed.trail is not None:
        marks = dict(speed.trail.weights)
        for at, (rate, norm) in enumerate(zip(speed.trail.learning_rates, speed.trail.gradient_norms, strict=False)):
            if rate and norm and at in marks and marks[at] == marks.get(at + 1):
                yield _lost("speed", at)


def _lost(part: str, step: int) -> GateResult:
    at = Divergence(stage="optimizer", step=step, at="weights")
    return _drift("optimizer", at, fact("stated.update", part=part, step=step))


def _modes(record: RunRecord) -> Iterator[GateResult]:
    """Yield an evaluation that ran in training mode."""
    probe, learn = record.evidence.probe, record.evidence.learn
    evaluations = [(None, probe.evaluation)] if probe is not None and probe.evaluation is not None else []
    for step, evaluation in (*evaluations, *((each.step, each) for each in (learn.evaluations if learn else ()))):
        if evaluation.training_mode:
            at = Divergence(stage="evaluation", step=step, at="training mode")
            yield _drift("evaluation", at, fact("evaluation.mode", mode="training"))


def _drift(code: CauseCode, at: Divergence, why: Statement) -> GateResult:
    finding = Finding(check=f"stated.{at.stage}", outcome="drift", metric=fact("stated.by-itself"), detail=why)
    return GateResult((finding,), (Cause(code=code, sure="likely", why=why),), at)
