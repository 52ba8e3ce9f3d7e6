"""Completeness of a record: all evidence that its spec requires. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import (
    BATCH_FIELDS,
    EvaluationEvidence,
    LearnEvidence,
    ModelEvidence,
    ProbeEvidence,
    StepEvidence,
)
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import LearnSpec, ProbeSpec
from plumbline.schema.verdict import Finding, Outcome

__all__ = ["missing_evidence", "unequal_evidence"]

_EVALUATION = "evaluation/"
"""Prefix of the keys of a dataset's evaluation shards."""


def missing_evidence(loaded: LoadedRecord, side: str) -> Iterator[Finding]:
    """Yield a finding for each required item that a record lacks."""
    record = loaded.record
    for part in (record.experiment.part,) if record.experiment else record.spec.parts:
        if getattr(record.evidence, part) is None:
            yield _lacks(
                f"{part}.evidence", "inconclusive", "evidence", f"the {side} contains no evidence of its {part} part"
            )
    probe, learn, speed = record.evidence.probe, record.evidence.learn, record.evidence.speed
    if probe is not None:
        yield from _probe(loaded, probe, side)
    if learn is not None and record.spec.learn is not None and record.experiment is None:
        yield from _learn(record, learn, record.spec.learn, side)
    if speed is not None and record.spec.speed is not None and speed.steps != record.spec.speed.steps:
        yield _counts("speed.steps", "measured steps", speed.steps, record.spec.speed.steps, side)


def unequal_evidence(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[Finding]:
    """Yield a finding for each item that only one of two records has."""
    left, right = reference.record.evidence, candidate.record.evidence
    same_model = left.model and right.model and left.model.architecture_sha256 == right.model.architecture_sha256
    if left.probe and right.probe and same_model:
        yield from _unequal_taps(left.probe, right.probe)
    if left.learn and right.learn and not _other_rows(_end(left.probe), _end(right.probe)):
        ours, theirs = left.learn.evaluations[-1:], right.learn.evaluations[-1:]
        if ours and theirs and _other_rows(ours[0], theirs[0]):
            text = "rows of the last evaluation"
            yield _counts("learn.evaluation", text, theirs[0].num_rows, ours[0].num_rows, "candidate")


def _unequal_taps(left: ProbeEvidence, right: ProbeEvidence) -> Iterator[Finding]:
    """Yield a finding if one record lacks taps of the other.

    Where the digests of all gradients differ, a parameter without a gradient is a drift, whose rung names it. Where the
    logits differ, a module that a run never calls is no lost tap: the outputs of later modules show its effect. A
    module that is called again, as checkpointing does, has separate taps with a `#` in their names, which may differ.
    """
    same = {
        step.step
        for step, other in zip(left.steps, right.steps, strict=False)
        if step.gradients_sha256 == other.gradients_sha256
    }
    uncalled = _uncalled(left, right)
    ours, theirs = (
        {
            (tap.step, tap.stage, tap.name)
            for tap in probe.taps
            if "#" not in tap.name
            and (tap.stage != "gradient" or tap.step in same)
            and (tap.stage != "forward" or tap.name not in uncalled)
        }
        for probe in (left, right)
    )
    for side, held, wanted in (("reference", ours, theirs), ("candidate", theirs, ours)):
        if lost := wanted - held:
            step, stage, name = min(lost)
            detail = f"the {side} has no {stage} of {name} at step {step}, which the other record has"
            yield _lacks("probe.taps", "invalid", "taps", detail, len(held), len(wanted))


def _uncalled(left: ProbeEvidence, right: ProbeEvidence) -> frozenset[str]:
    """Return the modules that only one of two runs with different logits calls at all."""
    if all(step.logits_sha256 == other.logits_sha256 for step, other in zip(left.steps, right.steps, strict=False)):
        return frozenset()
    ours, theirs = ({tap.name for tap in probe.taps if tap.stage == "forward"} for probe in (left, right))
    return frozenset(ours ^ theirs)


def _probe(loaded: LoadedRecord, probe: ProbeEvidence, side: str) -> Iterator[Finding]:
    record = loaded.record
    spec, experiment = record.spec.probe, record.experiment
    asked = experiment.steps - (experiment.trace or 0) if experiment else spec.steps if spec else 0
    if [step.step for step in probe.steps] != list(range(asked)):
        yield _counts("probe.steps", "steps", len(probe.steps), asked, side)
    yield from _steps(loaded, probe, side)
    yield from _taps(loaded, probe, asked, side)
    if record.evidence.data is None or record.evidence.model is None:
        yield _lacks(
            "probe.evidence", "inconclusive", "evidence", f"the {side} contains no evidence of its data or model"
        )
    if spec is None or (experiment is not None and experiment.part != "probe"):
        return
    envelope = probe.envelope
    if envelope and any(len(errors) != len(probe.taps) for errors in (envelope.errors, envelope.fp64_errors)):
        yield _counts("probe.envelope", "errors of the envelope", len(envelope.errors), len(probe.taps), side)
    if experiment is None or experiment.portable:
        yield from _portable(probe, spec, side)
    if probe.evaluation is None:
        yield _lacks("probe.evaluation", "inconclusive", "evaluation", f"the {side} contains no evaluation")
    elif side == "reference":  # of a candidate fewer rows are a drift, whose cause is `evaluation`
        yield from _rows(record, probe.evaluation, spec, "probe", side)


def _portable(probe: ProbeEvidence, spec: ProbeSpec, side: str) -> Iterator[Finding]:
    """Yield a finding if a requested portable leg is missing or incomplete.

    If it was lost because memory ran out, the native evidence decides: see `comparison`.
    """
    asked, leg = min(spec.portable_steps, spec.steps), probe.portable
    if asked and leg is None and "portable" not in probe.lost_legs:
        yield _lacks("probe.portable", "inconclusive", "portable leg", f"the {side} contains none")
    elif asked and leg and not leg.unportable and [step.step for step in leg.steps] != list(range(asked)):
        yield _counts("probe.portable", "portable steps", len(leg.steps), asked, side)


def _steps(loaded: LoadedRecord, probe: ProbeEvidence, side: str) -> Iterator[Finding]:
    for step in probe.steps:
        if lost := _lost_of(step):
            detail = f"the {side} has no {lost} of step {step.step}"
            yield _lacks("probe.steps", "inconclusive", lost, detail)
            return
    fields = [name for name in BATCH_FIELDS if name not in loaded.batches]
    if fields:
        yield _lacks(
            "probe.batches", "invalid", "batches", f"the {side} contains no {', '.join(fields)} of its batches"
        )
    states = [step.step for step in probe.steps if f"rng/{step.step}" not in loaded.state]
    if states:
        detail = f"the {side} contains no state of its generators at step {states[0]}"
        yield _lacks("probe.state", "invalid", "states", detail, len(probe.steps) - len(states), len(probe.steps))
    data = loaded.record.evidence.data
    if data is not None and len(loaded.rows.get("row_id", ())) != data.num_rows:
        yield _counts("probe.rows", "rows", len(loaded.rows.get("row_id", ())), data.num_rows, side)


def _lost_of(step: StepEvidence) -> str:
    """Return the name of the missing part of a step's evidence, or ""."""
    if set(step.batch) != set(BATCH_FIELDS):
        return "digest of every batch field"
    if not step.rng:
        return "digest of the generators"
    if not step.learning_rates:
        return "learning rate"
    if step.gradients_sha256 is None:
        return "digest of the gradients"
    return "gradient norm" if step.gradient_norm is None and step.loss_scale is None else ""


def _taps(loaded: LoadedRecord, probe: ProbeEvidence, asked: int, side: str) -> Iterator[Finding]:
    if probe.taps and "sketch" not in loaded.sketches:
        detail = f"the {side} contains none for its {len(probe.taps)} taps"
        yield _lacks("probe.sketches", "invalid", "sketches", detail)
    if not any(tap.stage == "forward" for tap in probe.taps):
        yield _lacks("probe.taps", "inconclusive", "taps", f"the {side} sketched no module's output", 0, 1)
        return
    spec, model = loaded.record.spec.probe, loaded.record.evidence.model
    wanted = {step for step in spec.tap_steps if step < asked} | {asked - 1} if spec else set()
    if loaded.record.experiment is not None and loaded.record.experiment.trace is not None:
        wanted = set(range(asked))
    for step in sorted(wanted):
        held = {stage: {tap.name for tap in probe.taps if (tap.step, tap.stage) == (step, stage)} for stage in _STAGES}
        empty = next((stage for stage, names in held.items() if not names), None)
        if empty is not None:
            yield _lacks("probe.taps", "invalid", "taps", f"the {side} has no {empty} taps at step {step}", 0)
            return
        own = _own_parameters(model)
        if own and held["weight"] != own:
            detail = f"the {side} sketched {len(held['weight'])} of {len(own)} parameters at step {step}"
            yield _lacks("probe.taps", "invalid", "taps", detail, len(held["weight"]), len(own))
            return


_STAGES = ("forward", "gradient", "weight")


def _own_parameters(model: ModelEvidence | None) -> set[str]:
    return {parameter.name for parameter in model.parameters if not parameter.tied_to} if model else set()


def _learn(record: RunRecord, learn: LearnEvidence, spec: LearnSpec, side: str) -> Iterator[Finding]:
    if learn.steps != spec.steps or len(learn.losses) != spec.steps:
        yield _counts("learn.steps", "steps", len(learn.losses), spec.steps, side)
        return
    due = [step for step in range(1, spec.steps + 1) if step % spec.evaluate_every == 0 or step == spec.steps]
    if [evaluation.step for evaluation in learn.evaluations] != due:
        yield _counts("learn.evaluations", "evaluations", len(learn.evaluations), len(due), side)
    if learn.weights_sha256 is None:
        yield _lacks("learn.weights", "inconclusive", "digest", f"the {side} has no digest of its last weights")
    for evaluation in learn.evaluations if side == "reference" else ():
        yield from _rows(record, evaluation, spec, "learn", side)


def _rows(
    record: RunRecord, evaluation: EvaluationEvidence, spec: ProbeSpec | LearnSpec, part: str, side: str
) -> Iterator[Finding]:
    available = _evaluation_rows(record)
    due = spec.evaluation_rows if available is None else min(spec.evaluation_rows, available)
    # Without the split's size, fewer rows than asked may be all that there are.
    wrong = evaluation.num_rows != due if available is not None else not 1 <= evaluation.num_rows <= due
    if wrong:
        yield _counts(f"{part}.evaluation", "rows of the evaluation", evaluation.num_rows, due, side)


def _evaluation_rows(record: RunRecord) -> int | None:
    """Return the number of evaluation rows; `None` if the shards do not show it."""
    shards = record.evidence.data.shards if record.evidence.data else ()
    counts = [shard.num_rows for shard in shards if shard.key.startswith(_EVALUATION)]
    return sum(counts) if counts else None


def _end(probe: ProbeEvidence | None) -> EvaluationEvidence | None:
    return probe.evaluation if probe else None


def _other_rows(left: EvaluationEvidence | None, right: EvaluationEvidence | None) -> bool:
    return left is not None and right is not None and left.num_rows != right.num_rows


def _counts(check: str, metric: str, observed: int, wanted: int, side: str) -> Finding:
    return _lacks(
        check, "invalid", metric, f"the {side} contains {observed} {metric} instead of {wanted}", observed, wanted
    )


def _lacks(check: str, outcome: Outcome, metric: str, detail: str, *counts: int) -> Finding:
    """Return a finding; `counts` are the observed and the required number."""
    observed, limit = (*counts, None, None)[:2]
    return Finding(check=check, outcome=outcome, metric=metric, observed=observed, limit=limit, detail=detail)
