"""A training that computes in a different precision than its spec's is not a pass, though all platforms share it."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare, judge_round
from plumbline.judge.canary import prove
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from tests.said import said

from .conftest import other_kernel
from .made_records import edit, in_spec, named, old


def measured(name: str, precision: str = "fp32", **bits: int) -> LoadedRecord:
    return edit(named(name, fingerprint={"mantissa_bits": bits}), in_spec("probe", precision=precision))


@pytest.mark.parametrize(
    ("precision", "bits", "is_honest"),
    [
        # As torch keeps them: on a CPU, which has no TF32, and on a GPU.
        ("fp64", 52, True), ("fp32", 23, True), ("tf32", 23, True), ("tf32", 10, True), ("fp16", 10, True),
        ("bf16", 7, True),
        # A different format has at least three bits more or fewer.
        ("fp64", 23, False), ("fp32", 10, False), ("fp32", 7, False), ("tf32", 7, False), ("fp16", 7, False),
        ("fp16", 23, False), ("bf16", 23, False), ("bf16", 10, False),
    ],
)  # fmt: skip
def test_products_keep_the_bits_of_the_spec(precision: str, bits: int, is_honest: bool) -> None:
    for operator in ("linear", "matmul", "bmm"):
        others = {"softmax": 23, "gelu": 23, "layer_norm": 23}
        records = {name: measured(name, precision, **{operator: bits}, **others) for name in "ab"}
        results = judge_round(records, "a", {})
        assert [result.verdict for result in results.values()] == ["pass" if is_honest else "invalid"] * 2
        if not is_honest:
            finding = next(finding for finding in results["b"].findings if finding.outcome == "invalid")
            assert (finding.check, finding.observed) == ("record.precision", bits)
            assert f"{operator} keeps {bits} bits of mantissa" in said(finding.detail)


def test_a_single_platform_and_a_baseline_in_fewer_bits_are_no_pass() -> None:
    record = measured("a", linear=10)
    assert judge_round({"a": record}, "a", {})["a"].verdict == "invalid"
    before = edit(old("a", fingerprint={"mantissa_bits": {"linear": 10}}), in_spec("probe", precision="fp32"))
    assert judge_round({"a": record}, "a", {"a": before})["a"].verdict == "invalid"
    # The canary tests the judge, not such a record.
    assert prove(record, Gates()) == ()
    assert len(prove(measured("a", linear=23), Gates())) == 3


def test_what_is_not_measured_is_no_contradiction() -> None:
    for bits in ({}, {"softmax": 10}):
        assert compare(*(measured(name, **bits) for name in "ab")).verdict == "pass"


def test_fewer_bits_on_one_side_are_a_drift_with_a_cause() -> None:
    fewer: dict[str, Any] = {
        "noise": {"layer.linear": 1e-3},
        "fingerprint": other_kernel() | {"mantissa_bits": {"linear": 10}},
    }  # fmt: skip
    for sides in ((measured("a", linear=23), named("b", **fewer)), (named("b", **fewer), measured("a", linear=23))):
        judgement = compare(*sides)
        assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["precision"])


def test_the_platform_that_contradicts_its_spec_is_off() -> None:
    off: dict[str, Any] = {
        "noise": {"layer.linear": 1e-3},
        "fingerprint": other_kernel() | {"mantissa_bits": {"linear": 10}},
    }
    records = {"a": named("a", **off), "b": named("b", **off), "c": measured("c", linear=23)}
    assert [result.verdict for result in judge_round(records, "a", {}).values()] == ["drift", "drift", "pass"]
