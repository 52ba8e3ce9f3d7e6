"""Completeness of a probe and of a learning curve: steps, states, logs, optimizer, portable leg, evaluations. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from plumbline.judge.gaps import Gap, counts, lacks
from plumbline.judge.whole_rows import missing_evaluation_rows
from plumbline.judge.whole_taps import missing_taps
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import BATCH_FIELDS, EvaluationEvidence, LearnEvidence, ProbeEvidence, StepEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import probe_places
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import LearnSpec, Precision, ProbeSpec

_GENERATORS = frozenset({"python", "numpy", "torch"})
_GENERATOR = re.compile(r"python|numpy|torch|cuda:\d+")
_SETTINGS = frozenset({"class", "lr"})
"""Settings that the groups of every optimizer have."""

_LOGGED_STEPS = 10_000
"""The trainer logs the first steps of a long curve."""


def missing_probe(loaded: LoadedRecord, probe: ProbeEvidence) -> Iterator[Gap]:
    """Yield each missing item of a probe, or of a traced part of a learning curve."""
    record = loaded.record
    spec, experiment = record.spec.probe, record.experiment
    asked = experiment.steps - (experiment.trace or 0) if experiment else spec.steps if spec else 0
    if [step.step for step in probe.steps] != list(range(asked)):
        yield counts("probe.steps", "steps", len(probe.steps), asked)
    yield from _steps(loaded, probe)
    yield from missing_taps(loaded, probe, asked)
    if record.evidence.model is None:
        yield lacks(
            "probe.evidence",
            "inconclusive",
            "evidence",
            fact("gap.model"),
        )
    if not probe.optimizer or any(not group.settings.keys() >= _SETTINGS for group in probe.optimizer):
        yield lacks(
            "probe.optimizer",
            "inconclusive",
            "settings",
            fact("gap.optimizer"),
        )
    if spec is None or (experiment is not None and experiment.part != "probe"):
        return
    if experiment is None or experiment.portable:
        yield from _portable(probe, spec, record.spec.seed)
    if probe.evaluation is None:
        yield lacks(
            "probe.evaluation",
            "inconclusive",
            "evaluation",
            fact("gap.evaluation"),
        )
    else:
        yield from _evaluation(loaded, probe.evaluation, spec, asked)


def _evaluation(loaded: LoadedRecord, evaluation: EvaluationEvidence, spec: ProbeSpec, asked: int) -> Iterator[Gap]:
    """Yield wrong rows, steps or numbers; of a candidate, only a wrong step is no drift."""
    if evaluation.step != asked:
        text = fact("gap.evaluated-at", step=evaluation.step, required=asked)
        yield lacks("probe.evaluation", "invalid", "step", text, evaluation.step, asked)
    yield from missing_evaluation_rows(loaded.record, evaluation, spec, "probe")
    logits = loaded.evaluation.get("logits", np.zeros(0))
    # Rows of masked tokens may hide none: their mean log-probabilities are zero then, and there is no loss.
    is_empty = not loaded.record.spec.has_row_labels and not logits.any()
    finite = all(number is not None and math.isfinite(number) for number in (evaluation.loss, evaluation.accuracy))
    if not (finite or is_empty) or not np.isfinite(logits).all():
        text = fact("gap.evaluation-not-finite")
        yield lacks("probe.evaluation", "invalid", "evaluation", text, role="reference")


def _portable(probe: ProbeEvidence, spec: ProbeSpec, seed: int) -> Iterator[Gap]:
    """Yield a gap if a requested portable leg is missing or incomplete.

    If it was lost because memory ran out, equal bits may still decide: see `comparison`.
    """
    asked, leg = min(spec.portable_steps, spec.steps), probe.portable
    if asked and leg is None and "portable" not in probe.lost_legs:
        yield lacks("probe.portable", "inconclusive", fact("gap.portable-leg"), fact("gap.none"))
        return
    # A limit of time may end the leg after any step.
    least = asked if spec.portable_seconds is None else 1
    steps = [step.step for step in leg.steps] if leg else []
    first, late = probe_places(spec, seed)
    planned = [[*range(first), *late][: len(steps)], list(range(len(steps)))]  # the second: kept records of GPUs
    if asked and leg and not leg.unportable and (steps not in planned or not least <= len(steps) <= asked):
        yield counts("probe.portable", fact("gap.portable-steps"), len(leg.steps), asked)


def _steps(loaded: LoadedRecord, probe: ProbeEvidence) -> Iterator[Gap]:
    record = loaded.record
    is_fp16 = _precision(record) == "fp16"
    generators = _GENERATORS | ({"cuda:0"} if record.fingerprint.gpus else set())
    for step in probe.steps:
        if lost := _lost_of(step, generators, is_fp16=is_fp16):
            yield lacks("probe.steps", "inconclusive", lost, fact("gap.of-step", what=lost, step=step.step))
            return
    fields = [name for name in BATCH_FIELDS if name not in loaded.batches]
    if fields:
        yield lacks(
            "probe.batches",
            "invalid",
            "batches",
            fact("gap.batches", fields=", ".join(fields)),
        )
    states = [step.step for step in probe.steps if f"rng/{step.step}" not in loaded.state]
    if states:
        text = fact("gap.generators", step=states[0])
        yield lacks("probe.state", "invalid", "states", text, len(probe.steps) - len(states), len(probe.steps))


def _precision(record: RunRecord) -> Precision:
    """Return the precision of the steps that a record's probe contains."""
    experiment = record.experiment
    part = record.spec.learn if experiment is not None and experiment.part == "learn" else record.spec.probe
    own = experiment.precision if experiment is not None else None
    return own or (part.precision if part else "fp32")


def _lost_of(step: StepEvidence, generators: frozenset[str], *, is_fp16: bool) -> Statement:
    """Return the name of the missing part of a step's evidence, or ""."""
    if set(step.batch) != set(BATCH_FIELDS):
        return fact("gap.batch-digests")
    if not generators <= step.rng.keys() or not all(map(_GENERATOR.fullmatch, step.rng)):
        return fact("gap.generator-digests")
    if not step.learning_rates:
        return fact("gap.learning-rate")
    if step.gradients_sha256 is None:
        return fact("gap.gradients-digest")
    # Only the loss scaling of fp16 skips a step.
    is_skipped = is_fp16 and step.loss_scale is not None
    return fact("gap.gradient-norm") if step.gradient_norm is None and not is_skipped else ""


def missing_curve(record: RunRecord, learn: LearnEvidence, spec: LearnSpec) -> Iterator[Gap]:
    """Yield each missing item of a learning curve."""
    asked = min(record.experiment.steps, spec.steps) if record.experiment else spec.steps
    if learn.steps != asked or len(learn.losses) != asked:
        yield counts("learn.steps", "steps", len(learn.losses), asked)
        return
    due = [step for step in range(1, asked + 1) if step % spec.evaluate_every == 0 or step == spec.steps]
    if [evaluation.step for evaluation in learn.evaluations] != due:
        yield counts("learn.evaluations", "evaluations", len(learn.evaluations), len(due))
    if learn.weights_sha256 is None:
        yield lacks("learn.weights", "inconclusive", "digest", fact("gap.last-weights"))
    for evaluation in learn.evaluations:
        yield from missing_evaluation_rows(record, evaluation, spec, "learn")
    if not _are_finite(learn.evaluations, masked=not record.spec.has_row_labels):
        text = fact("gap.evaluations-not-finite")
        yield lacks("learn.evaluation", "invalid", "evaluation", text)
    if lost := _lost_log(learn, min(asked, _LOGGED_STEPS)):
        yield lacks("learn.log", "inconclusive", lost, fact("gap.log", what=lost))


def _are_finite(evaluations: tuple[EvaluationEvidence, ...], *, masked: bool) -> bool:
    """Return whether every evaluation has numbers; rows of masked tokens may hide none, and then never have any."""
    numbers = [number for each in evaluations for number in (each.loss, each.accuracy)]
    if masked and all(number is None for number in numbers):
        return True
    return all(number is not None and math.isfinite(number) for number in numbers)


def _lost_log(learn: LearnEvidence, num_steps: int) -> Statement:
    """Return the name of a missing log, or ""."""
    if len(learn.batches) != num_steps:
        return fact("gap.batch-digest")
    if len(learn.learning_rates) != num_steps:
        return fact("gap.learning-rate")
    if not len(learn.rows) == len(learn.labels) == num_steps:
        return fact("gap.rows-digest")
    if learn.start_sha256 is None:
        return fact("gap.start-digest")
    return "dropout" if learn.dropout is None else ""
