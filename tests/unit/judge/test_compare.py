"""`compare` names the broken rung, and accepts rounding differences."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from tests.said import said

from .conftest import EVALUATION_ROWS, STEPS, Plan, make_record, other_kernel
from .made_records import codes, judge


def test_equal_records_pass_and_say_so(reference: LoadedRecord) -> None:
    judgement = judge(reference)
    assert judgement.verdict == "pass"
    assert judgement.first_divergence is None
    assert judgement.causes == ()
    assert [note.code for note in judgement.notes] == ["equal-bits"]


def test_rounding_that_nothing_explains_is_a_kernel_never_an_operator(reference: LoadedRecord) -> None:
    judgement = judge(reference, noise={"layer.linear": 3e-7})
    assert judgement.verdict == "drift"
    assert codes(judgement) == ["kernel"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.at == "layer.linear"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"loss_factor": 1.01}, "loss"),
        ({"gradient_factor": 1.25}, "gradient"),
        ({"clip": 0.5}, "gradient"),
        ({"rates": [1e-3 * (step + 2) for step in range(STEPS)]}, "schedule"),
        ({"decay": 0.02}, "optimizer"),
        ({"update_factor": {1: 1.5}}, "optimizer"),
        ({"evaluation_mode": True}, "evaluation"),
        ({"evaluation_rows": EVALUATION_ROWS - 1}, "evaluation"),
    ],
)
@pytest.mark.parametrize("explained", [False, True])
def test_each_later_rung_by_itself(reference: LoadedRecord, changes: Any, code: str, explained: bool) -> None:
    different: dict[str, Any] = {"fingerprint": other_kernel()} if explained else {}
    if explained and code in ("gradient", "optimizer"):  # between kernels portable bits show it
        kind = {"gradient": "gradients", "optimizer": "weights"}[code]
        different["portable"] = {f"1/{kind}/head.weight": "f" * 16}
    judgement = judge(reference, **changes, **different)
    assert judgement.verdict == "drift"
    assert codes(judgement) == [code]


def test_two_causes_are_both_named(reference: LoadedRecord) -> None:
    rates = [1e-3 * (step + 2) for step in range(STEPS)]
    plan = Plan(rates=rates)
    plan.labels[3] = 1 - plan.labels[3]
    assert set(codes(compare(reference, make_record(plan)))) == {"data.labels", "schedule"}


def test_suspects_are_those_that_could_explain_the_cause(reference: LoadedRecord) -> None:
    fingerprint = {"packages": {"torch": "2.13.0", "tokenizers": "0.23"}, "driver": "580"}
    cause = judge(reference, ids_shift=1, fingerprint=fingerprint).causes[0]
    assert any(line.startswith("packages.tokenizers") for line in cause.suspects)
    assert not any(line.startswith("driver") for line in cause.suspects)


def test_another_hostname_is_no_cause_and_no_excuse(reference: LoadedRecord) -> None:
    assert judge(reference, fingerprint={"hostname": "other"}).verdict == "pass"
    assert judge(reference, noise={"layer.linear": 3e-7}, fingerprint={"hostname": "other"}).verdict == "drift"


def measured(*digests: str, scale: float = 1.0) -> dict[str, Any]:
    """Return a fingerprint's digests of native operations in the probe."""
    sketch = [scale * (place + 1) for place in range(8)]
    names = ("linear", "gelu")
    operations = [
        {"name": name, "sha256": digest * 16, "sketch": sketch} for name, digest in zip(names, digests, strict=False)
    ]
    return {"probe": operations}


VARIABLES = (
    "NCCL_DEBUG",
    "KMP_BLOCKTIME",
    "CUDA_HOME",
    "TORCHELASTIC_RUN_ID",
    "OMP_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_excuses_rounding_only_where_it_is_measured(name: str) -> None:
    """A slightly wrong gradient is a drift, whatever variable differs, unless native operations round differently."""
    made = make_record(fingerprint={"operations": measured("a", "b")})
    varied = {"environment": {name: "1"}}
    equal, other = (varied | {"operations": measured("a", last)} for last in "bc")
    assert judge(made, fingerprint=equal).verdict == "pass"
    assert judge(made, gradient_factor=1.000001, fingerprint=equal).verdict == "drift"
    judgement = judge(made, gradient_factor=1.000001, fingerprint=other)
    assert judgement.verdict == "pass"
    assert any(note.code == "rounding" and "1 of 2 native" in said(note.text) for note in judgement.notes)


def test_equal_operations_excuse_no_other_machine_and_different_ones_no_equal_machine() -> None:
    """A faulty operation on an equal machine, or one that computes something else, excuses nothing."""
    made = make_record(fingerprint={"operations": measured("a", "b")})
    moved = {"cpu": other_kernel()["cpu"]}
    for fingerprint in (
        moved | {"operations": measured("a", "b")},
        {"operations": measured("a", "c")},
        {"operations": measured("a", "c"), "hostname": "other"},
        moved | {"operations": measured("a", "c", scale=1.001)},
        moved | {"operations": measured("a")},
    ):
        assert judge(made, gradient_factor=1.000001, fingerprint=fingerprint).verdict == "drift"
    newer = {"operations": measured("a", "b"), "packages": {"torch": "9"}}
    for fingerprint in (newer, moved, {"operations": measured("a"), "num_processes": 2}):
        assert judge(made, gradient_factor=1.000001, fingerprint=fingerprint).verdict == "pass"


def test_a_compiler_that_one_machine_has_excuses_rounding() -> None:
    """Its kernels are not among the operations."""
    sides = [{"operations": measured("a", "b"), "numerics": {"probe.compiled": value}} for value in (False, True)]
    made = make_record(fingerprint=sides[0])
    assert judge(made, gradient_factor=1.000001, fingerprint=sides[1]).verdict == "pass"
    assert judge(made, gradient_factor=1.000001, fingerprint=sides[0]).verdict == "drift"


@pytest.mark.parametrize(("name", "verdict"), [
    ("NCCL_DEBUG", "drift"), ("KMP_BLOCKTIME", "drift"), ("TORCHINDUCTOR_CACHE_DIR", "drift"),
    ("TORCHINDUCTOR_CPP_CXX", "pass"),
])  # fmt: skip
def test_a_compiled_part_is_excused_by_the_machine_and_by_what_its_compiler_reads(name: str, verdict: str) -> None:
    side = {"operations": measured("a", "b"), "numerics": {"probe.compiled": True}}
    made = make_record(fingerprint=side)
    varied = side | {"environment": {name: "1"}}
    assert judge(made, gradient_factor=1.000001, fingerprint=varied).verdict == verdict


def test_nan_in_a_sketch_never_passes(reference: LoadedRecord) -> None:
    candidate = make_record(noise={"head": 1e-7}, fingerprint=other_kernel())
    candidate.arrays["sketches"]["sketch"][:] = math.nan
    assert compare(reference, candidate).verdict == "drift"


def test_part_of_another_shape_is_invalid(reference: LoadedRecord) -> None:
    candidate = make_record()
    candidate.arrays["sketches"]["sketch"] = candidate.arrays["sketches"]["sketch"][:-1]
    judgement = compare(reference, candidate)
    assert judgement.verdict == "invalid"


def test_updates_of_the_same_length_in_another_direction_are_no_rate(reference: LoadedRecord) -> None:
    made = make_record(update_factor=dict.fromkeys(range(STEPS), 1.5))
    probe = made.record.evidence.probe
    assert probe is not None
    for place, tap in enumerate(probe.taps):
        if tap.stage == "optimizer" and tap.step == 0:
            made.arrays["sketches"]["sketch"][place] *= 1.2
    assert codes(compare(reference, made)) == ["optimizer"]
