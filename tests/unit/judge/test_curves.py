"""Curves and traces side by side: every field that has to be equal, and both ends of every range of steps."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge.confirm import Request
from plumbline.judge.curves import (
    Window,
    earlier_window,
    first_window,
    has_equal_bits,
    has_equal_evaluations,
    trace_problem,
    was_interrupted,
)
from plumbline.judge.native import rounds_differently
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.experiment import Experiment
from tests.kept_results import keep
from tests.said import said

from .conftest import other_kernel
from .test_learn_trace import CURVE, LOSSES, WEIGHTS, curve, separated, trace

EVALUATION = curve().record.evidence.learn.evaluations[-1]  # type: ignore[union-attr]
OTHER_END = EVALUATION.replace(step=CURVE, loss=1.0)


def without_learn(record: LoadedRecord) -> LoadedRecord:
    evidence = record.record.evidence.replace(learn=None)
    return LoadedRecord(record.record.replace(evidence=evidence), record.folder, record.arrays)


def with_evidence(record: LoadedRecord, **changes: Any) -> LoadedRecord:
    evidence = record.record.evidence.replace(**changes)
    return LoadedRecord(record.record.replace(evidence=evidence), record.folder, record.arrays)


def learn_of(record: LoadedRecord) -> LearnEvidence:
    assert record.record.evidence.learn is not None
    return record.record.evidence.learn


def with_losses(losses: tuple[float | None, ...], **changes: Any) -> LoadedRecord:
    return with_evidence(curve(**changes), learn=learn_of(curve(**changes)).replace(losses=losses))


def test_losses_are_compared_over_the_steps_that_both_ran() -> None:
    side = curve()
    for steps in (1, 3, 5, 6, 7):
        assert has_equal_bits(side, curve(5), steps) is (steps <= 5)
        assert has_equal_bits(curve(5), side, steps) is (steps <= 5)
    for kept in (3, 4, 5):
        short = with_losses(LOSSES[:kept])
        assert has_equal_bits(side, short, 4) is (kept >= 4)
    assert not has_equal_bits(without_learn(side), side, 3)
    assert not has_equal_bits(side, without_learn(side), 3)


def test_a_lost_loss_equals_none() -> None:
    lost = with_losses((*LOSSES[:3], None, *LOSSES[4:]))
    assert not has_equal_bits(lost, lost, 5)
    assert has_equal_bits(lost, lost, 3)
    assert not has_equal_bits(lost, lost, 4)


def test_weights_and_evaluations_count_at_the_end_of_the_curve_alone() -> None:
    side = curve(evaluations=[OTHER_END.to_json()])
    ends = [
        curve(weights_sha256="c" * 64, evaluations=[OTHER_END.to_json()]),
        curve(evaluations=[OTHER_END.replace(accuracy=0.5).to_json()]),
        curve(evaluations=[]),
    ]
    for other in ends:
        for steps, is_equal in ((CURVE - 1, True), (CURVE, False), (CURVE + 1, False)):
            # More steps than the curve has are not steps that both ran.
            assert has_equal_bits(side, other, steps) is is_equal
            assert has_equal_bits(other, side, steps) is is_equal
    assert has_equal_bits(side, side, CURVE)
    unknown = curve(weights_sha256=None, evaluations=[OTHER_END.to_json()])
    assert not has_equal_bits(unknown, unknown, CURVE)
    assert has_equal_bits(unknown, unknown, CURVE - 1)


@pytest.mark.parametrize(
    ("changes", "is_equal"),
    [
        ({}, True),
        ({"logits_sha256": "e" * 64, "predictions_sha256": "e" * 64}, True),  # sums of the definition round
        ({"loss": 1 + 4e-6}, True),
        ({"loss": 1 - 4e-6}, True),
        ({"loss": 1 + 6e-6}, False),
        ({"loss": 1 - 6e-6}, False),
        ({"loss": None}, False),
        ({"step": 7}, False),
        ({"num_rows": 1025}, False),
        ({"num_rows": 1023}, False),
        ({"rows_sha256": "e" * 64}, False),
        ({"training_mode": True}, False),
        ({"accuracy": 0.86}, False),
        ({"accuracy": 0.84}, False),
        ({"accuracy": None}, False),
    ],
)
def test_an_evaluation_by_the_definition_may_differ_by_rounding_alone(changes: dict[str, Any], is_equal: bool) -> None:
    side = curve(evaluations=[EVALUATION.to_json(), OTHER_END.to_json()])
    for places in ([EVALUATION, OTHER_END.replace(**changes)], [OTHER_END.replace(**changes), EVALUATION]):
        other = curve(evaluations=[place.to_json() for place in places])
        mine = side if places[0] is EVALUATION else curve(evaluations=[OTHER_END.to_json(), EVALUATION.to_json()])
        assert has_equal_evaluations(mine, other) is is_equal


def test_evaluations_of_different_trainings_are_never_equal() -> None:
    side = curve(evaluations=[OTHER_END.to_json()])
    assert has_equal_evaluations(side, side)
    for other in (
        curve(evaluations=[]),
        curve(evaluations=[OTHER_END.to_json(), OTHER_END.to_json()]),
        curve(weights_sha256="c" * 64, evaluations=[OTHER_END.to_json()]),
        curve(weights_sha256="A".lower() * 63 + "0", evaluations=[OTHER_END.to_json()]),
        with_losses((*LOSSES[:7], 9.0), evaluations=[OTHER_END.to_json()]),
        with_losses(LOSSES[:7], evaluations=[OTHER_END.to_json()]),
        without_learn(side),
    ):
        assert not has_equal_evaluations(side, other)
        assert not has_equal_evaluations(other, side)
    unknown = curve(weights_sha256=None, evaluations=[OTHER_END.to_json()])
    assert not has_equal_evaluations(unknown, unknown)
    assert has_equal_evaluations(curve(evaluations=[]), curve(evaluations=[]))


@pytest.mark.parametrize(("precision", "is_equal"), [("fp32", False), ("bf16", True)])
def test_the_rounding_of_a_curves_evaluation_is_that_of_its_own_part(precision: str, is_equal: bool) -> None:
    def in_precision(record: LoadedRecord) -> LoadedRecord:
        learn = {"steps": CURVE, "checkpoint_every": 4, "evaluate_every": 4, "precision": precision}
        spec = record.record.spec.replace(learn=learn)
        return LoadedRecord(record.record.model_copy(update={"spec": spec}), record.folder, record.arrays)

    sides = (curve(evaluations=[OTHER_END.replace(loss=loss).to_json()]) for loss in (1.0, 1.01))
    assert has_equal_evaluations(*(in_precision(side) for side in sides)) is is_equal


def test_only_a_resume_up_to_the_step_interrupts_it() -> None:
    for resumed, step, is_interrupted in (
        ([3], 2, False), ([3], 3, True), ([3], 4, True), ([3, 6], 4, True), ([6, 3], 4, True), ([], 4, False),
        ([CURVE], None, True), ([CURVE + 1], None, False), ([3], None, True), ([1], 0, False), ([0], 0, True),
    ):  # fmt: skip
        assert was_interrupted(curve(resumed_at=resumed), step) is is_interrupted
    assert not was_interrupted(without_learn(curve()), 3)


def test_a_machine_changes_by_what_explains_rounding() -> None:
    moved = curve(fingerprint=other_kernel() | {"hostname": "other"})
    assert keep(rounds_differently(curve().record, moved.record, "learn")) == ("cpu.isa: AVX2 → AVX512",)
    assert keep(rounds_differently(moved.record, curve().record, "learn")) == ("cpu.isa: AVX512 → AVX2",)
    other = curve(fingerprint={"hostname": "other"})
    assert rounds_differently(curve().record, other.record, "learn") == ()


@pytest.mark.parametrize(
    ("parted", "window"),
    [(0, (0, 4)), (1, (0, 4)), (2, (1, 5)), (4, (3, 7)), (5, (4, 8)), (6, (5, 8)), (7, (6, 8)), (None, (7, 8))],
)
def test_a_window_holds_the_step_before_the_difference_and_two_after_it(
    parted: int | None, window: tuple[int, int]
) -> None:
    for sides in ((curve(), curve(parted)), (curve(parted), curve())):
        assert first_window(*(learn_of(side) for side in sides)) == Window(*window)


def copied(text: str) -> str:
    """Return an equal text that is no same object, as records of two files contain."""
    return "".join(list(text))


def traced(weights: tuple[str, ...] | None, first: int = 5) -> LoadedRecord:
    marks = None if weights is None else {"first": first, "weights": [copied(mark) for mark in weights]}
    return with_evidence(curve(), trace=marks)


@pytest.mark.parametrize(
    ("differs", "first", "until", "window"),
    [
        (None, 5, 8, None),
        (0, 5, 8, (0, 4)), (1, 5, 8, (0, 4)), (2, 5, 8, (1, 5)), (4, 5, 8, (3, 7)), (5, 5, 8, (4, 8)),
        (6, 5, 8, None), (8, 5, 8, None),
        (5, 5, 7, (4, 7)), (3, 3, 5, (2, 5)), (0, 0, 4, None), (1, 1, 4, (0, 4)), (2, 1, 4, None),
    ],
)  # fmt: skip
def test_a_window_moves_to_the_weights_that_differ_first(
    differs: int | None, first: int, until: int, window: tuple[int, int] | None
) -> None:
    other = WEIGHTS if differs is None else separated(differs)
    expected = None if window is None else Window(*window)
    for sides in ((traced(WEIGHTS), traced(other)), (traced(other), traced(WEIGHTS))):
        assert earlier_window(Window(first, until), *sides) == expected
        assert earlier_window(Window(first, until), sides[0], traced(None)) is None
        assert earlier_window(Window(first, until), traced(None), sides[1]) is None
    # Only common checksums count.
    assert earlier_window(Window(first, until), traced(WEIGHTS[:2]), traced(other[:3])) == (
        expected if differs in {0, 1} else None
    )


def of_trace(weights: int, first: int, begin: int | None, steps: int) -> LoadedRecord:
    asked = Experiment(experiment_id="unit-x1", steps=8, part="learn", trace=5)
    made = trace(curve(), Request("candidate", asked))
    record = made.record.replace(experiment=asked.replace(trace=begin, steps=steps))
    marks = {"first": first, "weights": WEIGHTS[:weights]}
    return with_evidence(LoadedRecord(record, made.folder, made.arrays), trace=marks)


@pytest.mark.parametrize(
    ("weights", "first", "begin", "steps", "problem"),
    [
        (9, 5, 5, 8, ""),
        (6, 5, 5, 8, ""),
        (5, 5, 5, 8, "the trace contains no checksums of the weights before its first step"),
        (4, 5, 5, 8, "the trace contains no checksums of the weights before its first step"),
        (9, 4, 5, 8, "the trace does not begin at step 5, or does not end before step 8"),
        (9, 6, 5, 8, "the trace does not begin at step 5, or does not end before step 8"),
        (9, 5, 4, 8, "the trace does not begin at step 5, or does not end before step 8"),
        (9, 5, None, 8, "the trace does not begin at step 5, or does not end before step 8"),
        (9, 5, 5, 7, "the trace does not begin at step 5, or does not end before step 8"),
        (9, 5, 5, 9, "the trace does not begin at step 5, or does not end before step 8"),
    ],
)
def test_a_trace_is_of_exactly_the_steps_that_were_asked_for(
    weights: int, first: int, begin: int | None, steps: int, problem: str
) -> None:
    found = trace_problem(of_trace(weights, first, begin, steps), Window(5, 8))
    assert said(keep(found)) == problem


def test_a_record_without_a_part_of_a_trace_is_none() -> None:
    whole = of_trace(9, 5, 5, 8)
    plain = LoadedRecord(whole.record.replace(experiment=None), whole.folder, whole.arrays)
    for lacking in (plain, with_evidence(whole, trace=None), with_evidence(whole, probe=None)):
        assert said(trace_problem(lacking, Window(5, 8))) == "the record contains no trace"
