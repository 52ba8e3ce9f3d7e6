"""Curves side by side: every field that has to be equal, and both ends of every range of steps."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge.curves import has_equal_bits, has_equal_evaluations, was_interrupted
from plumbline.judge.native import rounds_differently
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import LearnEvidence

from .conftest import other_kernel
from .made_records import with_evidence
from .test_curve_reruns import CURVE, LOSSES, curve, ended

EVALUATION = curve().record.evidence.learn.evaluations[-1]  # type: ignore[union-attr]
OTHER_END = EVALUATION.replace(step=CURVE, loss=1.0)


def without_learn(record: LoadedRecord) -> LoadedRecord:
    return with_evidence(record, learn=None)


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
        curve(weights=ended("c"), evaluations=[OTHER_END.to_json()]),
        curve(evaluations=[OTHER_END.replace(accuracy=0.5).to_json()]),
        curve(evaluations=[]),
    ]
    for other in ends:
        for steps, is_equal in ((CURVE - 1, True), (CURVE, False), (CURVE + 1, False)):
            # More steps than the curve has are not steps that both ran.
            assert has_equal_bits(side, other, steps) is is_equal
            assert has_equal_bits(other, side, steps) is is_equal
    assert has_equal_bits(side, side, CURVE)
    unknown = curve(weights=(), evaluations=[OTHER_END.to_json()])
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
        curve(weights=ended("c"), evaluations=[OTHER_END.to_json()]),
        curve(weights=[[0, "0" * 16], [CURVE, "a" * 15 + "0"]], evaluations=[OTHER_END.to_json()]),
        with_losses((*LOSSES[:7], 9.0), evaluations=[OTHER_END.to_json()]),
        with_losses(LOSSES[:7], evaluations=[OTHER_END.to_json()]),
        without_learn(side),
    ):
        assert not has_equal_evaluations(side, other)
        assert not has_equal_evaluations(other, side)
    unknown = curve(weights=(), evaluations=[OTHER_END.to_json()])
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
    assert rounds_differently(curve().record, moved.record, "learn") == ("cpu.isa: AVX2 → AVX512",)
    assert rounds_differently(moved.record, curve().record, "learn") == ("cpu.isa: AVX512 → AVX2",)
    other = curve(fingerprint={"hostname": "other"})
    assert rounds_differently(curve().record, other.record, "learn") == ()


def test_bits_are_due_between_two_gpus_of_one_model_and_not_between_two_models() -> None:
    def gpu(number: int, **changes: Any) -> LoadedRecord:
        card = {"name": "H100", "uuid": f"GPU-{number}", "pci": f"0000:0{number}:00.0", "memory_bytes": 80 << 30}
        return curve(fingerprint={"gpus": [card | changes], "hostname": f"node-{number}"})

    assert rounds_differently(gpu(1).record, gpu(2).record, "learn") == ()
    for change, line in (
        ({"name": "H200"}, "gpus.0.name: H100 → H200"),
        ({"num_sms": 114}, "gpus.0.num_sms: None → 114"),
    ):
        assert rounds_differently(gpu(1).record, gpu(2, **change).record, "learn") == (line,)
