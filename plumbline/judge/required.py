"""Table of the evidence that a record must contain. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from plumbline.judge.gaps import Gap, counts
from plumbline.judge.taps import missing_taps, num_steps
from plumbline.records import LoadedRecord
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import digest_array
from plumbline.schema.evidence import (
    BATCH_FIELDS,
    DataEvidence,
    EvaluationEvidence,
    Evidence,
    LearnEvidence,
    ProbeEvidence,
    SpeedEvidence,
)
from plumbline.schema.fact import fact
from plumbline.schema.portable_parts import proof_places, window_places
from plumbline.schema.production import ProductionEvidence
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import PARTS, LearnSpec, Precision, ProbeSpec, SpeedSpec
from plumbline.schema.step_log import MAX_LOGGED, StepLog

_GENERATORS = frozenset({"python", "numpy", "torch"})
_GENERATOR = re.compile(r"python|numpy|torch|cuda:\d+")
_SETTINGS = frozenset({"class", "lr"})
"""Settings that the groups of every optimizer have."""
_PROBE_COLUMNS = (
    "gradient_norms", "clipped_norms", "gradients", "logits", "logits_dtype", "loss_dtype", "defined_losses",
    "is_training",
)  # fmt: skip
"""Columns that only the probe's log has."""
_ALWAYS_MARKED = ("input_ids", "labels")
"""Fields of a batch that every task has."""
_EVALUATION = "evaluation/"
"""Prefix of the keys of a dataset's evaluation shards."""
_MAX_SHARDS_KEPT = 10_000
"""A record of a dataset with more shards names the first ones only."""


def _probe_steps(loaded: LoadedRecord, probe: ProbeEvidence, spec: ProbeSpec | None) -> Iterator[Gap]:
    record, asked, held = loaded.record, num_steps(loaded.record, spec), probe.num_steps
    if held != asked:
        yield counts("probe.steps", "steps", held, asked)
    yield from _log("probe", probe, held, BATCH_FIELDS, _PROBE_COLUMNS)
    generators = _GENERATORS | ({"cuda:0"} if record.fingerprint.gpus else set())
    # Only the loss scaling of fp16 skips a step.
    is_scaled = _precision(record) == "fp16"
    for step in probe.steps_of():
        if not generators <= step.generators.keys() or not all(map(_GENERATOR.fullmatch, step.generators)):
            lost = fact("gap.generator-digests")
        elif step.weights is None:
            lost = fact("gap.weights-digest")
        elif step.gradient_norm is None and not (is_scaled and step.loss_scale is not None):
            lost = fact("gap.gradient-norm")
        else:
            continue
        yield Gap("probe.steps", lost, fact("gap.of-step", what=lost, step=step.step))
        return
    if fields := [name for name in BATCH_FIELDS if name not in loaded.batches]:
        yield Gap("probe.batches", "batches", fact("gap.batches", fields=", ".join(fields)), "invalid")
    if states := [step for step in range(held) if f"rng/{step}" not in loaded.state]:
        text = fact("gap.generators", step=states[0])
        yield Gap("probe.state", "states", text, "invalid", held - len(states), held)


def _precision(record: RunRecord) -> Precision:
    """Return the precision of the recorded probe steps."""
    own = record.experiment.precision if record.experiment else None
    return own or record.spec.precision_of("probe")


def _probe_settings(loaded: LoadedRecord, probe: ProbeEvidence, _spec: ProbeSpec | None) -> Iterator[Gap]:
    if loaded.record.evidence.model is None:
        yield Gap("probe.evidence", "evidence", fact("gap.model"))
    if not probe.optimizer or any(not group.settings.keys() >= _SETTINGS for group in probe.optimizer):
        yield Gap("probe.optimizer", "settings", fact("gap.optimizer"))


def _windows(part: str, loaded: LoadedRecord, evidence: Any, spec: Any) -> Iterator[Gap]:
    """Yield a gap if the windows of a part are missing or incomplete, without a recorded reason."""
    record, found = loaded.record, evidence.portable
    if isinstance(record.spec, CapturedSpec):
        return
    data = record.evidence.data
    num_rows = _num_training_rows(data) if data is not None else None
    epoch = None if num_rows is None else -(-num_rows // record.spec.batch_size)
    due = window_places(record.spec, part, epoch)
    if not due or (found is not None and found.lost):
        return
    if found is None or not found.windows or (part == "probe" and found.repeated is None):
        yield Gap(f"{part}.portable", fact("gap.windows"), fact("gap.no-windows", part=part))
        return
    held = tuple(window.step for window in found.windows)
    if part == "learn" and epoch is None:  # the places between depend on the number of rows
        due, held = ((due[0], due[-1]), (held[0], held[-1]))
    # A limit of time may end the probe's windows after any step. The window of `speed` with dropout is no older
    # version's, and not every family's.
    least = (
        1
        if part == "probe" and spec.portable_seconds is not None
        else min(len(due), 2)
        if part == "speed"
        else len(due)
    )
    if held != due[: len(held)] or len(held) < least:
        yield counts(f"{part}.portable", fact("gap.windows"), len(held), len(due))


def _proofs(part: str, loaded: LoadedRecord, evidence: Any, _spec: Any) -> Iterator[Gap]:
    """Yield a gap if a part proves none of its steps; without memory for its checks, `speed` proves none."""
    if isinstance(loaded.record.spec, CapturedSpec):
        return
    is_lost = part == "speed" and evidence.production is not None and evidence.production.lost
    if not evidence.proofs and not is_lost and proof_places(loaded.record.spec, part, ""):
        yield Gap("proof.steps", fact("gap.proven-steps"), fact("gap.no-proofs", part=part))


def _probe_evaluation(loaded: LoadedRecord, probe: ProbeEvidence, spec: ProbeSpec) -> Iterator[Gap]:
    """Yield gaps of the probe's evaluation: step, rows and numbers."""
    evaluation, asked = probe.evaluation, num_steps(loaded.record, spec)
    if evaluation is None:
        yield Gap("probe.evaluation", "evaluation", fact("gap.evaluation"))
        return
    if evaluation.step != asked:
        text = fact("gap.evaluated-at", step=evaluation.step, required=asked)
        yield Gap("probe.evaluation", "step", text, "invalid", evaluation.step, asked)
    yield from _evaluated_rows(loaded.record, evaluation, spec, "probe")
    logits = loaded.evaluation.get("logits", np.zeros(0))
    # Rows of masked tokens may hide none: their mean log-probabilities are zero then, and there is no loss.
    is_empty = not loaded.record.spec.has_row_labels and not logits.any()
    if not (_has_numbers(evaluation) or is_empty) or not np.isfinite(logits).all():
        text = fact("gap.evaluation-not-finite")
        yield Gap("probe.evaluation", "evaluation", text, "invalid", role="reference")
    if probe.recounted is None:
        yield Gap("probe.evaluation", "recounted", fact("gap.recounted"))


def _data(_loaded: LoadedRecord, evidence: Evidence, _spec: None) -> Iterator[Gap]:
    if evidence.data is None and (evidence.probe is not None or evidence.learn is not None):
        yield Gap("data.evidence", "evidence", fact("gap.data"))


def _data_rows(loaded: LoadedRecord, data: DataEvidence, _spec: None) -> Iterator[Gap]:
    if not data.shards:
        yield Gap("data.shards", "shards", fact("gap.shards"), "invalid")
    held = len(loaded.rows.get("row_id", ()))
    due = _rows_due(loaded.record, data)
    if held != data.num_rows:
        yield counts("data.rows", "rows", held, data.num_rows)
    elif due is not None and held != due:
        yield counts("data.rows", "rows", held, due, "reference")


def _data_evaluated(loaded: LoadedRecord, _data: DataEvidence, _spec: None) -> Iterator[Gap]:
    """Yield a gap if evaluation arrays are missing or contradict digests."""
    probe = loaded.record.evidence.probe
    evaluation = probe.evaluation if probe is not None else None
    if evaluation is None:
        return
    for name, key in (("row_ids", "rows"), ("predictions", "predictions"), ("logits", "logits")):
        array = loaded.evaluation.get(name)
        held = 0 if array is None or not array.ndim else len(array)
        if array is None or held != evaluation.num_rows or not array.ndim:
            yield counts("evaluation.part", fact("gap.evaluation-part", name=name), held, evaluation.num_rows)
        elif digest_array(array) != getattr(evaluation, f"{key}_sha256"):
            yield Gap("evaluation.part", name, fact("gap.part-digest", name=name), "invalid")


def _rows_due(record: RunRecord, data: DataEvidence) -> int | None:
    """Return how many distinct rows a training reads; `None` if unknown."""
    available, training = _num_evaluation_rows(data), _num_training_rows(data)
    if available is None or training is None:
        return None
    spec = record.spec
    steps = max(part.steps for part in (spec.probe, spec.speed, spec.learn) if part)
    evaluated = max((part.evaluation_rows for part in (spec.probe, spec.learn) if part), default=0)
    return min(steps * spec.batch_size, training) + min(evaluated, available)


def _num_evaluation_rows(data: DataEvidence) -> int | None:
    """Return the number of rows in the evaluation split; `None` if unknown."""
    if len(data.shards) >= _MAX_SHARDS_KEPT:
        return None
    sizes = [shard.num_rows for shard in data.shards if shard.key.startswith(_EVALUATION)]
    return sum(sizes) if sizes else None


def _num_training_rows(data: DataEvidence) -> int | None:
    """Return the number of rows to train on; `None` if unknown."""
    available = _num_evaluation_rows(data)
    return None if available is None else sum(shard.num_rows for shard in data.shards) - available


def _evaluated_rows(
    record: RunRecord, evaluation: EvaluationEvidence, spec: ProbeSpec | LearnSpec, part: str
) -> Iterator[Gap]:
    """Yield a gap if the reference evaluated too few rows."""
    data = record.evidence.data
    available = _num_evaluation_rows(data) if data is not None else None
    if available is None and data is not None and len(data.shards) < _MAX_SHARDS_KEPT:
        yield Gap("data.shards", "shards", fact("gap.evaluation-shards"), "invalid", role="reference")
        return
    due = spec.evaluation_rows if available is None else min(spec.evaluation_rows, available)
    if evaluation.num_rows != due:
        yield counts(f"{part}.evaluation", fact("gap.evaluation-rows"), evaluation.num_rows, due, "reference")


def _curve(loaded: LoadedRecord, learn: LearnEvidence, spec: LearnSpec) -> Iterator[Gap]:
    record = loaded.record
    asked = min(record.experiment.steps, spec.steps) if record.experiment else spec.steps
    if learn.steps != asked or len(learn.losses) != asked:
        yield counts("learn.steps", "steps", len(learn.losses), asked)
        return
    due = [step for step in range(1, asked + 1) if step % spec.evaluate_every == 0 or step == spec.steps]
    if [evaluation.step for evaluation in learn.evaluations] != due:
        yield counts("learn.evaluations", "evaluations", len(learn.evaluations), len(due))
    if learn.last_weights is None:
        yield Gap("learn.weights", "digest", fact("gap.last-weights"))
    for evaluation in learn.evaluations:
        yield from _evaluated_rows(record, evaluation, spec, "learn")
    # Rows of masked tokens may hide none, and then never have any number.
    is_empty = not record.spec.has_row_labels and all(e.loss is e.accuracy is None for e in learn.evaluations)
    if not is_empty and not _has_numbers(*learn.evaluations):
        yield Gap("learn.evaluation", "evaluation", fact("gap.evaluations-not-finite"), "invalid")
    yield from _log("learn", learn, min(asked, MAX_LOGGED))


def _has_numbers(*evaluations: EvaluationEvidence) -> bool:
    numbers = [number for each in evaluations for number in (each.loss, each.accuracy)]
    return all(number is not None and math.isfinite(number) for number in numbers)


def _log(
    part: str, log: StepLog, num_steps: int, fields: Sequence[str] = _ALWAYS_MARKED, others: Sequence[str] = ()
) -> Iterator[Gap]:
    """Yield a gap for the first column of a part's log that has not one entry per step."""
    marks = dict.fromkeys(fields, ()) | log.batches
    columns = {name: getattr(log, name) for name in ("num_rows", "losses", "learning_rates", *others)}
    for name, values in {**columns, **marks}.items():
        if not values:
            yield Gap(f"{part}.log", name, fact("gap.log", part=part, what=name))
            return
        if (held := len(values[:MAX_LOGGED])) != num_steps:
            yield counts(f"{part}.log", fact("gap.log-steps", part=part, name=name), held, num_steps)
            return
    if part == "learn" and 0 not in dict(log.weights):  # the kept records of a GPU have none of `speed`
        yield Gap(f"{part}.log", "weights", fact("gap.log", part=part, what=fact("gap.start-digest")))
    elif log.dropout is None:
        yield Gap(f"{part}.log", "dropout", fact("gap.log", part=part, what="dropout"))


def _speed(_loaded: LoadedRecord, speed: SpeedEvidence, spec: SpeedSpec) -> Iterator[Gap]:
    if speed.steps != spec.steps:
        yield counts("speed.steps", fact("gap.measured-steps"), speed.steps, spec.steps)
    elif speed.wall_seconds is None:
        yield Gap("speed.wall", fact("gap.wall-time-name"), fact("gap.wall-time"))
    if speed.steps == spec.steps:
        yield from _log("speed", speed, min(speed.warmup_steps + speed.steps, MAX_LOGGED))


def _speed_checks(_loaded: LoadedRecord, speed: SpeedEvidence, spec: SpeedSpec) -> Iterator[Gap]:
    if not spec.checks:
        return
    if speed.production is None or not (speed.production.lost or _is_checked(speed.production, spec)):
        yield Gap("production.evidence", "checks", fact("gap.production"))


def _is_checked(checks: ProductionEvidence, spec: SpeedSpec) -> bool:
    """Return whether all checks of these settings ran; FSDP shards cannot check compiled or flash-attn kernels."""
    is_closed = spec.compile or spec.attention == "flash_attention_2"
    has_kernels = bool(checks.kernels) or not is_closed or spec.distributed == "fsdp"
    return bool(checks.formula) and checks.repeated is not None and has_kernels


def _selfcheck(loaded: LoadedRecord, evidence: Evidence, _spec: None) -> Iterator[Gap]:
    record, probe = loaded.record, loaded.record.spec.probe
    # Only a training that a round ordered has a nonce.
    is_ordered = bool(record.nonce) and record.experiment is None and probe is not None and probe.portable_steps
    if is_ordered and evidence.selfcheck is None:
        yield Gap("selfcheck.evidence", "selfcheck", fact("gap.selfcheck"))


When = Literal["always", "part", "windows", "training"]
"""When a row is due: for every record; in a training alone; or also in an experiment on this part, or on its
windows."""

_TABLE: tuple[tuple[str, When, Callable[[LoadedRecord, Any, Any], Iterator[Gap]]], ...] = (
    ("probe", "always", _probe_steps),
    ("probe", "always", missing_taps),
    ("probe", "always", _probe_settings),
    ("probe", "windows", partial(_windows, "probe")),
    ("probe", "part", _probe_evaluation),
    ("", "always", _data),
    ("data", "always", _data_rows),
    ("data", "always", _data_evaluated),
    ("learn", "part", _curve),
    ("learn", "training", partial(_windows, "learn")),
    ("speed", "training", _speed),
    ("speed", "training", _speed_checks),
    ("speed", "training", partial(_windows, "speed")),
    ("", "always", _selfcheck),
    *((part, "training", partial(_proofs, part)) for part in PARTS),
)
"""Part whose evidence is checked, if the record has it (empty: the whole record), when, and what yields the gaps."""


def _is_due(record: RunRecord, part: str, when: When) -> bool:
    experiment = record.experiment
    if when == "always":
        return True
    if getattr(record.spec, part) is None:
        return False
    if experiment is None:
        return True
    return when != "training" and experiment.part == part and (when != "windows" or experiment.portable)


def captured_gaps(loaded: LoadedRecord) -> Iterator[Gap]:
    """Yield what a captured record lacks; what it says to be unknown is no gap."""
    probe, captured, spec = loaded.record.evidence.probe, loaded.record.evidence.captured, loaded.record.spec
    if probe is None or captured is None or loaded.record.evidence.model is None:
        yield Gap("captured.evidence", "evidence", fact("gap.evidence", part="captured"))
        return
    if probe.num_steps != (asked := num_steps(loaded.record, spec.probe)):
        yield counts("captured.steps", "steps", probe.num_steps, asked)
    if not any(probe.batches.values()) and not any(captured.inputs.values()):
        yield Gap("captured.batches", "batches", fact("gap.batches", fields="tensors"))
    if probe.taps and "sketch" not in loaded.sketches:
        yield Gap("probe.sketches", "sketches", fact("gap.sketches", num=len(probe.taps)), "invalid")


def gaps(loaded: LoadedRecord) -> Iterator[Gap]:
    """Yield all required evidence that a record lacks, in table order."""
    record = loaded.record
    if isinstance(record.spec, CapturedSpec):
        yield from captured_gaps(loaded)
        return
    for part in (record.experiment.part,) if record.experiment else record.spec.parts:
        if getattr(record.evidence, part) is None:
            yield Gap(f"{part}.evidence", "evidence", fact("gap.evidence", part=part))
    for name, when, missing in _TABLE:
        evidence = getattr(record.evidence, name) if name else record.evidence
        if evidence is not None and _is_due(record, name, when):
            yield from missing(loaded, evidence, getattr(record.spec, name, None))
