"""Step-by-step comparison of throughput runs: batches, learning rates, losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from plumbline.judge.gates.gate import GateResult
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import code_of_fields
from plumbline.judge.rungs.order import other_software
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.fact import Statement, fact
from plumbline.schema.production import SpeedTrail
from plumbline.schema.sketch import marks_of
from plumbline.schema.task import draws_labels
from plumbline.schema.tolerance import floor_of, relative
from plumbline.schema.verdict import Cause, CauseCode, Divergence, Finding, Stage

_APART: dict[str, tuple[CauseCode, Stage]] = {
    "learning rate": ("schedule", "schedule"),
    "gradient": ("gradient", "gradient"),
    "weights": ("optimizer", "optimizer"),
}


def batch_difference(pair: Pair) -> GateResult | None:
    """Return the first throughput-run batch that differs from probe or reference."""
    left, right = (trail_of(side) for side in (pair.reference, pair.candidate))
    if right is None:
        return None
    own = _own_batches(pair.candidate, right)
    masked = draws_labels(pair.candidate.record.spec.task)
    return own if own is not None or left is None else _batches(left, right, masked=masked)


def start_difference(pair: Pair) -> GateResult | None:
    """Return a difference in weights, seeds or dropout before step one."""
    sides = (pair.reference, pair.candidate)
    left, right = map(trail_of, sides)
    if left is None or right is None:
        return None
    whose = fact("trail.reference")
    if _parted_at(left, right) == 0:
        return _drift("weights.init", Divergence(stage="weights", step=0, at="weights"), fact("trail.start"), whose)
    rates = [trail.settings.get("dropout") for trail in (left, right)]
    if None not in rates and rates[0] != rates[1]:
        why = fact("learning.dropout", dropout=rates[1] or "0", reference=rates[0] or "0")
        return _drift("rng", Divergence(stage="rng", step=0, at="dropout"), why, whose)
    seeded = {(side.record.fingerprint.num_processes, bool(side.record.fingerprint.gpus)) for side in sides}
    if len(seeded) == 1 and not other_software(pair) and _first_apart(left.generators, right.generators) == 0:
        place = Divergence(stage="rng", step=0, at="random generators")
        return _drift("rng", place, fact("trail.seeds"), whose)
    return None


def later_difference(pair: Pair, *, is_due: bool) -> GateResult | None:
    """Return the first difference in processes, learning rates or required bits."""
    left, right = (trail_of(side) for side in (pair.reference, pair.candidate))
    if right is None:
        return None
    own = _parted_process(right)
    if own is None:
        norms = zip(right.gradient_norms, right.clipped_norms, strict=False)
        steps = [(step, *both) for step, both in enumerate(norms)]
        own = wrong_clipping(steps, pair.candidate.record.spec.optimizer.max_grad_norm)
    if own is not None or left is None:
        return own
    return _rates(left, right) or (_bits(left, right) if is_due else None)


def _parted_process(trail: SpeedTrail) -> GateResult | None:
    """Report the first process (rank) with weights different from rank 0's."""
    if not trail.apart:
        return None
    step, rank = trail.apart[0]
    code, stage = _APART[trail.apart_by] if step else ("weights.init", "weights")
    place = Divergence(stage=stage, step=step, at=f"weights of process {rank}")
    why = fact("trail.apart", step=step, rank=rank, part=trail.apart_by)
    return _drift(code, place, why, fact("trail.first-process"))


def wrong_clipping(steps: Iterable[tuple[int, float | None, float | None]], most: float) -> GateResult | None:
    """Return the first wrongly clipped gradient norm, from (step, before, after)."""
    limit = limits.PRODUCTION_FACTOR * floor_of("norm", "fp32")
    for step, norm, clipped in steps:
        if norm is None or (gap := relative(min(norm, most), clipped)) <= limit:
            continue
        finding = Finding(
            check="production.clipping", outcome="drift", metric=fact("production.clipping", step=step), observed=gap,
            limit=limit,
        )  # fmt: skip
        why = fact("gradient.clipping", norm=norm, clipped=clipped)
        at = Divergence(stage="gradient", step=step, at="clipping")
        return GateResult((finding,), (Cause(code="gradient", sure="likely", why=why),), at)
    return None


def trail_of(side: LoadedRecord) -> SpeedTrail | None:
    """Return the step-by-step log of a record's throughput run, if any."""
    speed = side.record.evidence.speed
    return speed.trail if speed is not None else None


def _own_batches(side: LoadedRecord, trail: SpeedTrail) -> GateResult | None:
    """Return the first batch difference between a record's throughput run and probe."""
    spec, batches = side.record.spec, side.batches
    if spec.speed is None or not batches:
        return None
    steps = min(len(trail.num_rows), spec.speed.steps, *(len(values) for values in batches.values()))
    expected = marks_of({name: values[:steps] for name, values in batches.items()})
    rows = [len(values) for values in batches["row_ids"][:steps]] if "row_ids" in batches else [spec.batch_size] * steps
    return _different(expected, rows, trail, fact("trail.own-probe"), masked=draws_labels(spec.task))


def _batches(left: SpeedTrail, right: SpeedTrail, *, masked: bool) -> GateResult | None:
    expected = {name: list(marks) for name, marks in left.marks.items()}
    return _different(expected, list(left.num_rows), right, fact("trail.reference"), masked=masked)


def _different(
    expected: dict[str, list[str]], rows: list[int], trail: SpeedTrail, whose: Statement, *, masked: bool
) -> GateResult | None:
    for step, (ours, theirs) in enumerate(zip(rows, trail.num_rows, strict=False)):
        names = tuple(
            name
            for name in BATCH_FIELDS
            if name in expected and name in trail.marks
            and expected[name][step : step + 1] != list(trail.marks[name][step : step + 1])
        )  # fmt: skip
        if ours != theirs:
            why = fact("batch.num-rows", num=theirs, reference=ours)
            return _drift("data.order", Divergence(stage="batch", step=step, at="row_ids"), why, whose)
        if names:
            return _drift(
                code_of_fields(names, masked=masked),
                Divergence(stage="batch", step=step, at=names[0]),
                fact("trail.fields", fields=", ".join(names)),
                whose,
            )
    return None


def _rates(left: SpeedTrail, right: SpeedTrail) -> GateResult | None:
    for step, (ours, theirs) in enumerate(zip(left.learning_rates, right.learning_rates, strict=False)):
        if abs(ours - theirs) > limits.EXACT * abs(ours):
            why = fact("trail.rate", rate=theirs, reference=ours)
            return _drift(
                "schedule", Divergence(stage="schedule", step=step, at="learning rate"), why, fact("trail.reference")
            )
    return None


def _bits(left: SpeedTrail, right: SpeedTrail) -> GateResult | None:
    """Return the first different loss, gradient norm or weights, in computation order."""
    losses = [math.nan if loss is None else loss for loss in left.losses]  # a missing loss equals nothing
    step, norm = _first_other(losses, right.losses), _first_other(left.gradient_norms, right.gradient_norms)
    done, drawn = _parted_at(left, right), _first_apart(left.generators, right.generators)
    whose = fact("trail.reference")
    first = min(math.inf if each is None else each for each in (step, norm, done))
    if norm == first and norm not in (step, done):
        code: CauseCode = "gradient" if _is_weighed(left, norm) else "unattributed"
        return _drift(code, Divergence(stage="gradient", step=norm, at="norm"), fact("trail.norm"), whose)
    if step is None or (done is not None and done <= step):
        if done is None:
            return None
        place = Divergence(stage="optimizer", step=done - 1, at="weights")
        return _drift("optimizer", place, fact("trail.weights", step=done), whose)
    if drawn is not None:
        why = fact("trail.generators", step=drawn)
        return _drift("rng", Divergence(stage="rng", step=step, at="dropout"), why, whose)
    known = _is_weighed(left, step)
    why = fact("trail.forward", step=step) if known else fact("trail.loss", step=step)
    place = Divergence(stage="loss", step=step, at="loss")
    return _drift("operator" if known else "unattributed", place, why, whose).as_guess()


def _is_weighed(trail: SpeedTrail, step: int) -> bool:
    """Return whether a weights checksum exists at `step`, or `step` is 0."""
    return step == 0 or step in dict(trail.weights)


def _parted_at(left: SpeedTrail, right: SpeedTrail) -> int | None:
    """Return the number of steps after which recorded weights first differ."""
    return _first_apart(left.weights, right.weights) if left.checksum == right.checksum else None


def _first_other(left: Sequence[float | None], right: Sequence[float | None]) -> int | None:
    """Return the first step at which two logged series differ."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((step for step, (ours, theirs) in pairs if ours != theirs), None)


def _first_apart(left: Sequence[tuple[int, str]], right: Sequence[tuple[int, str]]) -> int | None:
    """Return the first common step with different checksums."""
    ours, theirs = dict(left), dict(right)
    return next((step for step in sorted(ours.keys() & theirs.keys()) if ours[step] != theirs[step]), None)


def _drift(code: CauseCode, place: Divergence, why: Statement, whose: Statement) -> GateResult:
    finding = Finding(
        check=f"speed.{place.stage}", outcome="drift",
        metric=fact("trail.differs", what=place.at, step=place.step, whose=whose),
    )  # fmt: skip
    cause = Cause(code=code, sure="unattributed" if code == "unattributed" else "likely", why=why)
    return GateResult((finding,), (cause,), place)
