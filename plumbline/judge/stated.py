"""What a record states, against its spec and against its own numbers.

It needs no reference: platforms that share a fault agree with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from plumbline.judge.gates.gate import GateResult
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Cause, CauseCode, Divergence, Finding

_Update = tuple[int, float, float | None, bool]
"""Step, learning rate, norm of the gradients, and whether the weights stayed."""


def contradiction(record: RunRecord) -> GateResult | None:
    """Return the first contradiction of a record, whatever any other record says."""
    if record.experiment is not None:
        return None
    return next(chain(_dropout(record), _updates(record), _modes(record)), None)


def _dropout(record: RunRecord) -> Iterator[GateResult]:
    """Yield a dropout whose rate, as the built model has it, is not the spec's."""
    spec, evidence = record.spec, record.evidence
    if spec.speed is not None and evidence.speed is not None and evidence.speed.trail is not None:
        rates = str(evidence.speed.trail.settings.get("dropout") or "").split(", ")
        yield from _rates("speed", spec.speed.dropout, [float(rate) for rate in rates if rate])
    if spec.learn is not None and evidence.learn is not None:
        yield from _rates("learn", spec.learn.dropout, evidence.learn.dropout or ())


def _rates(part: str, wanted: float, rates: Iterable[float]) -> Iterator[GateResult]:
    found = sorted(set(rates))
    # A family may have layers that never drop an element.
    if found and [rate for rate in found if rate] != ([wanted] if wanted else []):
        why = fact("stated.dropout", part=part, dropout=", ".join(map(str, found)), wanted=wanted)
        yield _drift("rng", Divergence(stage="rng", step=0, at="dropout"), why)


def _updates(record: RunRecord) -> Iterator[GateResult]:
    """Yield an update of finite gradients, at a rate above zero, that left every weight as it was."""
    probe, speed = record.evidence.probe, record.evidence.speed
    steps = probe.steps if probe is not None else ()
    digests = [None, *(step.weights_sha256 for step in steps)]
    yield from _lost("probe", [
        (step.step, max(step.learning_rates, default=0.0), step.gradient_norm, digests[at] == step.weights_sha256)
        for at, step in enumerate(steps)
    ])  # fmt: skip
    if speed is not None and speed.trail is not None:
        trail, marks = speed.trail, dict(speed.trail.weights)
        numbers = enumerate(zip(trail.learning_rates, trail.gradient_norms, strict=False))
        yield from _lost("speed", [
            (step, rate, norm, step in marks and marks[step] == marks.get(step + 1)) for step, (rate, norm) in numbers
        ])  # fmt: skip
    replay = speed.production.steps if speed is not None and speed.production is not None else ()
    yield from _lost("speed", [(step.step, 1.0, step.gradient_norm, step.skipped) for step in replay])


def _lost(part: str, updates: Iterable[_Update]) -> Iterator[GateResult]:
    for step, rate, norm, stays in updates:
        if stays and rate and norm:  # loss scaling skips gradients that are not finite
            why = fact("stated.update", part=part, step=step)
            yield _drift("optimizer", Divergence(stage="optimizer", step=step, at="weights"), why)


def _modes(record: RunRecord) -> Iterator[GateResult]:
    """Yield an evaluation in training mode."""
    probe, learn = record.evidence.probe, record.evidence.learn
    evaluations = [(None, probe.evaluation)] if probe is not None and probe.evaluation is not None else []
    for step, evaluation in (*evaluations, *((each.step, each) for each in (learn.evaluations if learn else ()))):
        if evaluation.training_mode:
            at = Divergence(stage="evaluation", step=step, at="training mode")
            yield _drift("evaluation", at, fact("evaluation.mode", mode="training"))


def _drift(code: CauseCode, at: Divergence, why: Statement) -> GateResult:
    finding = Finding(check=f"stated.{at.stage}", outcome="drift", metric=fact("stated.by-itself"), detail=why)
    return GateResult((finding,), (Cause(code=code, sure="likely", why=why),), at)
