"""Logged steps of `speed` and `learn`: what is exact on every machine, and every bit where it is due.

Without it, a different batch, rate, dropout or seed of a whole training shows in nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.native import has_compiled, other_software
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import code_of_fields
from plumbline.judge.rungs.bits import other_kernels
from plumbline.judge.rungs.optimizer import other_rates
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import BATCH_FIELDS, LearnEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.sketch import marks_of
from plumbline.schema.spec import PartName, Precision
from plumbline.schema.stage import Stage
from plumbline.schema.step_log import StepLog
from plumbline.schema.task import draws_labels
from plumbline.schema.tolerance import floor_of, loss_gap, relative
from plumbline.schema.tolerance import limit as limit_of
from plumbline.schema.verdict import CauseCode, Divergence, Finding

Trained = Literal["speed", "learn"]


def log_of(side: LoadedRecord, part: PartName) -> StepLog | None:
    """Return what a part logged; `None` without it."""
    log: StepLog | None = getattr(side.record.evidence, part)
    is_whole = not isinstance(log, LearnEvidence) or log.last_weights is not None
    return log if log is not None and log.losses and is_whole else None


@dataclass(frozen=True, slots=True)
class _Apart:
    """First different entry of one kind in two logs."""

    step: int
    stage: Stage
    at: str
    code: CauseCode
    why: Statement


def logged(pair: Pair, part: Trained, *, is_due: bool | None = None) -> Mismatch | None:
    """Return the first different entry of a part's logs.

    `is_due`: whether losses, norms and weights must have equal bits; by default, where the machines owe them.
    """
    left, right = (log_of(side, part) for side in (pair.reference, pair.candidate))
    if left is None or right is None:
        return None
    is_due = bits_due(pair, part) if is_due is None else is_due
    exact = min(_exact(pair, part, left, right), key=lambda found: found.step, default=None)
    precision = pair.reference.record.spec.precision_of(part)
    bits = _bits(left, right, precision) if is_due else _first_loss(pair, left, right) if part == "learn" else None
    found = exact if bits is None or (exact is not None and exact.step <= bits.step) else bits
    return None if found is None else _mismatch(part, found, is_due=is_due, shown=found is exact)


def _mismatch(part: Trained, found: _Apart, *, is_due: bool, shown: bool) -> Mismatch:
    check, whose = f"{part}.{'bits' if is_due else 'exact'}", fact("log.reference")
    metric = fact("log.differs", what=found.at, step=found.step, part=part, whose=whose)
    finding = Finding(check=check, outcome="drift", metric=metric, observed=found.step, detail=found.why)
    at = Divergence(stage=found.stage, step=found.step, at=found.at)
    shown = shown and found.code != "unattributed"
    suspicion = Suspicion(found.code, found.why, shown=shown)
    return Mismatch(at, (finding,), (suspicion,), basis="given")


def _exact(pair: Pair, part: Trained, left: StepLog, right: StepLog) -> Iterator[_Apart]:
    """Yield what differs on every machine, in the order within a step."""
    if None not in (left.dropout, right.dropout) and left.dropout != right.dropout:
        ours, theirs = (", ".join(map(str, side.dropout or ())) or "0" for side in (left, right))
        why = fact("log.dropout", dropout=theirs, reference=ours)
        yield _Apart(0, "rng", "dropout", "rng", why)
    if _first_apart(dict(left.weights), dict(right.weights)) == 0:
        yield _Apart(0, "weights", "weights", "weights.init", fact("log.start", part=part))
    drawn = _first_apart(left.states, right.states) if _is_seeded_alike(pair) else None
    if drawn == 0:
        yield _Apart(0, "rng", "random generators", "rng", fact("log.seeds", part=part))
    yield from _batches(left, right, masked=draws_labels(pair.reference.record.spec.task))
    if drawn:
        yield _Apart(drawn - 1, "rng", "random generators", "rng", fact("log.generators", step=drawn))
    rates = enumerate(zip(left.learning_rates, right.learning_rates, strict=False))
    for step, found in ((step, found) for step, both in rates if (found := other_rates(*both)) is not None):
        resumed = fact("log.at-resume", step=step) if step in right.resumed_at else ""
        why = fact("log.rate", step=step, rate=found[0], resumed=resumed)
        yield _Apart(step, "schedule", "learning rate", "schedule", why)
        return


def _is_seeded_alike(pair: Pair) -> bool:
    """Return whether both sides' generators must have equal states at each step; a GPU's draws depend on its model."""
    left, right = pair.reference.record, pair.candidate.record
    sides = (left.fingerprint, right.fingerprint)
    machines = {(side.num_processes, tuple(gpu.name for gpu in side.gpus)) for side in sides}
    return len(machines) == 1 and not other_software(left, right)


def _batches(left: StepLog, right: StepLog, *, masked: bool) -> Iterator[_Apart]:
    """Yield the first different batch, with its cause."""
    sides = [{"rows": each.num_rows, **each.batches} for each in (left, right)]
    names = [name for name in ("rows", *BATCH_FIELDS) if all(name in side for side in sides)]
    steps = [place for name in names if (place := _first_other(*(side[name] for side in sides))) is not None]
    if not steps:
        return
    step = min(steps)
    fields = tuple(name for name in names if sides[0][name][step : step + 1] != sides[1][name][step : step + 1])
    if fields[0] == "rows":
        why = fact("batch.num-rows", num=right.num_rows[step], reference=left.num_rows[step])
        yield _Apart(step, "batch", "row_ids", "data.order", why)
    else:
        code = code_of_fields(fields, masked=masked)
        yield _Apart(step, "batch", fields[0], code, fact("log.fields", fields=", ".join(fields)))


def bits_due(pair: Pair, part: Trained) -> bool:
    """Return whether a part must have equal bits on both sides.

    On a GPU, kernels of `speed` may be chosen by their time, night by night: equal operations show that they are not.
    """
    if other_kernels(pair, part):
        return False
    if part == "learn":
        return True
    sides = [side.record for side in (pair.reference, pair.candidate)]
    checks = (side.evidence.production for side in sides)
    if not all(each is not None and each.repeated for each in checks):
        return False
    if not any(side.fingerprint.gpus for side in sides):
        return True
    ours, theirs = (side.fingerprint.operations.get("speed") for side in sides)
    return bool(ours) and ours == theirs and not any(has_compiled(side, "speed") for side in sides)


def _bits(left: StepLog, right: StepLog, precision: Precision) -> _Apart | None:
    """Return the first different loss, gradient norm or weights, in computation order.

    Weights that differ by little may leave a loss its bits, but not change a norm by more than rounding does.
    """
    losses = [math.nan if loss is None else loss for loss in left.losses]  # a missing loss equals nothing
    step, norm = _first_other(losses, right.losses), _first_other(left.gradient_norms, right.gradient_norms)
    done = _first_apart(dict(left.weights), dict(right.weights))
    first = min((each for each in (step, norm, done) if each is not None), default=None)
    if norm is not None and norm == first and norm not in (step, done):
        is_large = relative(left.gradient_norms[norm], right.gradient_norms[norm]) > floor_of("norm", precision)
        code: CauseCode = "gradient" if is_large or _is_weighed(left, norm) else "unattributed"
        return _Apart(norm, "gradient", "norm", code, fact("log.norm"))
    if done is not None and (step is None or done <= step):
        return _Apart(max(done - 1, 0), "optimizer", "weights", "optimizer", fact("log.weights", step=done))
    if step is None:
        return None
    return _Apart(step, "loss", "loss", *_of_loss(left, right, step))


def _of_loss(left: StepLog, right: StepLog, step: int) -> tuple[CauseCode, Statement]:
    """Guess the cause of a first different loss, from what is known to be equal before it."""
    if restarts := [at for at in (*left.resumed_at, *right.resumed_at) if at <= step]:
        return "optimizer", fact("log.after-resume", step=step, resumed_at=restarts[-1])
    if _is_weighed(left, step):
        return "operator", fact("log.forward", step=step)
    return "unattributed", fact("log.loss", step=step)


def _first_loss(pair: Pair, left: StepLog, right: StepLog) -> _Apart | None:
    """Return the first loss that differs by more than rounding can explain."""
    if not left.losses or not right.losses or None in left.losses or None in right.losses:
        return None
    precision = pair.reference.record.spec.precision_of("learn")
    ours, theirs = float(left.losses[0] or 0.0), float(right.losses[0] or 0.0)
    if loss_gap(ours, theirs) > limit_of("gradient", precision):  # that of the logits
        return _Apart(0, "loss", "loss", "unattributed", fact("log.first-loss", loss=theirs, reference=ours))
    most = limits.HIGHEST_LOSS * max(abs(loss) for loss in left.losses if loss is not None)
    place = next((step for step, loss in enumerate(right.losses) if loss is not None and abs(loss) > most), None)
    if place is None:
        return None
    why = fact("log.loss-too-large", step=place, loss=right.losses[place], most=most)
    return _Apart(place, "loss", "loss", "unattributed", why)


def first_step_apart(left: StepLog, right: StepLog) -> int | None:
    """Return the first step with a different batch, learning rate or loss."""
    batch = next(_batches(left, right, masked=False), None)
    logs = ((left.learning_rates, right.learning_rates), (left.losses, right.losses))
    steps = [place for both in logs if (place := _first_other(*both)) is not None]
    return min([*steps, *([batch.step] if batch is not None else [])], default=None)


def batches_of_probe(side: LoadedRecord) -> Mismatch | None:
    """Return the first batch of `speed` that is not that of the record's own probe."""
    spec, batches, log = side.record.spec, side.batches, log_of(side, "speed")
    if spec.speed is None or not batches or log is None:
        return None
    steps = min(len(log.num_rows), spec.speed.steps, *(len(values) for values in batches.values()))
    rows = [len(values) for values in batches["row_ids"][:steps]] if "row_ids" in batches else [spec.batch_size] * steps
    marks = marks_of({name: values[:steps] for name, values in batches.items()})
    known = StepLog(num_rows=tuple(rows), batches={name: tuple(values) for name, values in marks.items()})
    found = next(_batches(known, log, masked=draws_labels(spec.task)), None)
    return None if found is None else _mismatch("speed", found, is_due=False, shown=True)


def _is_weighed(log: StepLog, step: int) -> bool:
    """Return whether a weights checksum exists at `step`, or `step` is 0."""
    return step == 0 or step in dict(log.weights)


def _first_other(left: Sequence[object], right: Sequence[object]) -> int | None:
    """Return the first step at which two logged series differ."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((step for step, (ours, theirs) in pairs if ours != theirs), None)


def _first_apart(ours: Mapping[int, object], theirs: Mapping[int, object]) -> int | None:
    """Return the first common step with different checksums."""
    return next((step for step in sorted(ours.keys() & theirs.keys()) if ours[step] != theirs[step]), None)
