"""An operator that computes in another number format than the reference's is named, at every part's settings."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import bits
from plumbline.judge.rungs.formats import formats
from plumbline.schema.verdict import Judgement

from .conftest import other_kernel
from .made_records import in_spec, whole
from .rung_numbers import STEP, scaled
from .rung_records import side
from .test_speed_windows import checked_speed

BF16 = {"linear": 7, "matmul": 7, "bmm": 7, "attention": 7, "softmax": 23, "layer_norm": 23, "cross_entropy": 23}


def judged(part: str = "speed", *changes: Any, isa: str = "", **bits: int) -> Judgement:
    """Compare two records of which the second keeps other bits in a part."""
    kept = [{f"{part}.{name}": value for name, value in (BF16 | more).items()} for more in ({}, bits)]
    machine = other_kernel() if isa else {}
    left = whole(checked_speed(), fingerprint={"mantissa_bits": kept[0]})
    right = whole(checked_speed(), *changes, fingerprint=machine | {"mantissa_bits": kept[1]})
    return compare(left, right, throughput=False)


@pytest.mark.parametrize("part", ["speed", "learn"])
@pytest.mark.parametrize("isa", ["", "AVX2"])
@pytest.mark.parametrize("operator", ["linear", "attention", "layer_norm", "cross_entropy"])
def test_fewer_bits_are_a_drift_of_precision_though_every_number_is_equal(part: str, isa: str, operator: str) -> None:
    judgement = judged(part, isa=isa, **{operator: 3})
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["precision"])
    assert judgement.first_divergence.at == operator


def test_more_bits_than_the_reference_are_another_format_too() -> None:
    assert [cause.code for cause in judged(linear=23).causes] == ["precision"]
    assert judged(linear=9).verdict == "pass"


def test_lists_of_autocast_vary_by_release_but_not_for_products() -> None:
    for more, is_named in (({"layer_norm": 7}, False), ({"linear": 3}, True)):
        kept = [{f"speed.{name}": bits for name, bits in operators.items()} for operators in (BF16, BF16 | more)]
        left = whole(checked_speed(), fingerprint={"mantissa_bits": kept[0]})
        right = whole(checked_speed(), fingerprint={"mantissa_bits": kept[1], "packages": {"torch": "2.4.0"}})
        codes = {cause.code for cause in compare(left, right, throughput=False).causes}
        assert ("precision" in codes) is is_named


@pytest.mark.parametrize(("dtype", "rounds", "computes"), [
    ("float32", 1e-6, 1e-4), ("bfloat16", 2.0**-8, 2.0**-6), ("float16", 2.0**-11, 2.0**-8),
])  # fmt: skip
def test_one_operation_on_equal_inputs_rounds_by_a_unit_of_its_own_format(
    dtype: str, rounds: float, computes: float
) -> None:
    """Mixed precision leaves LayerNorm in fp32: an output that is off by what bf16 would explain is another formula."""
    change = in_spec("probe", precision="fp16" if dtype == "float16" else "bf16")
    left = side(change, scaled("forward", "layer.norm", dtype=dtype))
    for error, code in ((rounds, "kernel"), (computes, "operator")):
        right = side(change, scaled("forward", "layer.norm", 1 + error, dtype=dtype))
        mismatch = bits(Pair(left, right), STEP, "forward")
        assert mismatch is not None
        assert mismatch.suspicions[0].code == code


@pytest.mark.parametrize("name", ["head", "layer.norm"])
def test_a_module_in_another_format_is_named_beside_autocast_too(name: str) -> None:
    change = in_spec("probe", precision="bf16")
    left, right = (side(change, scaled("forward", name, dtype=dtype)) for dtype in ("bfloat16", "float32"))
    found = formats(Pair(left, right), STEP)
    assert found is not None
    assert (found.suspicions[0].code, found.at.at) == ("precision", name)
