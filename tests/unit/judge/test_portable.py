"""Windows of the probe: proofs by equal bits, findings by different bits."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Judgement
from tests.said import said

from .conftest import make_record, other_kernel


@pytest.fixture(scope="module")
def reference() -> LoadedRecord:
    return make_record(has_windows=True)


def judge(reference: LoadedRecord, **changes: Any) -> Judgement:
    return compare(reference, make_record(has_windows=True, **changes))


def test_equal_windows_on_other_kernels_pass_and_say_what_is_proven(reference: LoadedRecord) -> None:
    judgement = judge(reference, noise={"layer.linear": 3e-7}, fingerprint=other_kernel())
    assert judgement.verdict == "pass"
    assert any(note.code == "portable" and "over 2 steps" in said(note.text) for note in judgement.notes)
    assert any(note.code == "rounding" and "AVX512" in said(note.text) for note in judgement.notes)
    assert ("probe.portable", "pass", 2) in [
        (finding.check, finding.outcome, finding.observed) for finding in judgement.findings
    ]


@pytest.mark.parametrize(
    ("place", "stage", "code", "at"),
    [
        ("0/outputs/layer.norm", "forward", "operator", "layer.norm"),
        ("0/loss", "loss", "loss", "loss"),
        ("0/gradients/layer.linear.weight", "gradient", "gradient", "layer.linear.weight"),
        ("0/weights/head.weight", "optimizer", "optimizer", "head.weight"),
        ("1/loss", "forward", "operator", "logits"),
        ("1/weights/embed.weight", "optimizer", "optimizer", "embed.weight"),
    ],
)
def test_one_other_portable_bit_is_drift_whatever_the_kernels(
    reference: LoadedRecord, place: str, stage: str, code: str, at: str
) -> None:
    judgement = judge(reference, portable={place: "f" * 16}, noise={"layer.linear": 3e-7}, fingerprint=other_kernel())
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == [code]
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.at) == (stage, at)
    assert judgement.first_divergence.step == int(place[0])


def test_a_first_bit_within_rounding_is_no_kernel_where_the_windows_differ_too(reference: LoadedRecord) -> None:
    """Equal machines, an untapped step: only the windows show that a formula differs."""
    noise = {"layer.norm@1": 3e-7}
    assert [cause.code for cause in judge(reference, noise=noise).causes] == ["kernel"]
    judgement = judge(reference, noise=noise, portable={"1/loss": "0x1.9p-1"})
    assert [cause.code for cause in judgement.causes] == ["operator"]
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.step) == ("forward", 1)


def test_a_gradient_that_differs_only_after_clipping_is_no_fault_of_the_optimizer() -> None:
    def clipped(digest: str, weight: str) -> LoadedRecord:
        changes = {"0/weights/head.weight": weight, "1/weights/head.weight": weight}
        made = make_record(has_windows=True, portable=changes, fingerprint=other_kernel() if weight[0] == "f" else {})
        content = made.record.model_dump()
        for step in content["evidence"]["probe"]["portable"]["windows"]:
            step["clipped"] = [["embed.weight", "a" * 16], ["head.weight", digest]] if digest else []
        return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)

    judgement = compare(clipped("a" * 16, "e" * 16), clipped("b" * 16, "f" * 16))
    assert [cause.code for cause in judgement.causes] == ["gradient"]
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.at) == ("clipped", "clipping")


@pytest.mark.parametrize(
    ("stage", "name", "code"),
    [("forward", "layer.norm", "operator"), ("loss", "loss", "loss"), ("gradient", "clipped head", "gradient")],
)
def test_a_process_that_differs_from_the_others_is_named_with_its_rung(stage: str, name: str, code: str) -> None:
    """Unless the first process differs from the reference's: then the others may be those that are right."""

    def in_second(**plan: Any) -> LoadedRecord:
        made = make_record(has_windows=True, **plan)
        content = made.record.model_dump()
        content["evidence"]["probe"]["portable"]["ranks"] = [{"rank": 1, "at": 1, "stage": stage, "name": name}]
        return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)

    cause, *others = compare(make_record(has_windows=True), in_second()).causes
    assert (cause.code, others) == (code, [])
    assert said(cause.why).startswith("process 1 of the candidate differs from its other processes: ")
    first = compare(make_record(has_windows=True), in_second(portable={"0/gradients/head.weight": "f" * 16})).causes[0]
    assert (first.code, "process" in said(first.why)) == ("gradient", False)


def test_a_module_that_is_called_again_adds_no_bits_but_differs_where_both_call_it() -> None:
    """Activation checkpointing runs each module once more in the backward pass."""

    def again(digest: str, *, repeated: bool = True) -> LoadedRecord:
        made = make_record(has_windows=True, fingerprint=other_kernel())
        content = made.record.model_dump()
        step = content["evidence"]["probe"]["portable"]["windows"][0]
        step["outputs"] = [*step["outputs"], ["embed#1", digest]] if repeated else step["outputs"]
        return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)

    plain = again("", repeated=False)
    for pair in ((plain, again("a" * 16)), (again("a" * 16), plain), (again("a" * 16), again("a" * 16))):
        assert compare(*pair).verdict == "pass"
    assert compare(again("a" * 16), again("b" * 16)).verdict == "drift"
