"""An operator that computes in another number format than the reference's is named, at every part's settings."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import bits
from plumbline.judge.rungs.formats import formats
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Judgement

from .conftest import make_record, other_kernel
from .made_records import Content, edit, in_spec, whole
from .rung_numbers import STEP, scaled
from .rung_records import side
from .test_withheld import replay

BF16 = {"linear": 7, "matmul": 7, "bmm": 7, "attention": 7, "softmax": 23, "layer_norm": 23, "cross_entropy": 23}


def judged(part: str = "speed", *changes: Any, isa: str = "", **bits: int) -> Judgement:
    """Compare two records of which the second keeps other bits in a part."""
    kept = [{f"{part}.{name}": value for name, value in (BF16 | more).items()} for more in ({}, bits)]
    machine = other_kernel() if isa else {}
    left = whole(replay(), fingerprint={"mantissa_bits": kept[0]})
    right = whole(replay(), *changes, fingerprint=machine | {"mantissa_bits": kept[1]})
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
    other = {"packages": {"torch": "2.4.0"}}
    kept = [{f"speed.{name}": value for name, value in (BF16 | more).items()} for more in ({}, {"layer_norm": 7})]
    left, right = (
        whole(replay(), fingerprint={"mantissa_bits": bits} | more)
        for bits, more in zip(kept, ({}, other), strict=True)
    )
    assert "precision" not in {cause.code for cause in compare(left, right, throughput=False).causes}


def test_a_linear_layer_in_the_format_of_no_autocast_is_named() -> None:
    """As where autocast has no effect: the numbers are better than they should be, and within every limit."""
    tap = {"stage": "forward", "name": "head", "kind": "Linear", "norm": 1.0, "sha256": "a" * 64, "error": 1e-7}
    taps = [[tap | {"dtype": dtype, "envelope": 1e-2}] for dtype in ("bfloat16", "float32")]
    records = [whole(in_spec("speed", precision="bf16"), replay(taps=each)) for each in taps]
    judgement = compare(*records, throughput=False)
    assert (judgement.causes[0].code, judgement.first_divergence.at) == ("precision", "head")


@pytest.mark.parametrize(("packages", "code"), [({}, "precision"), ({"transformers": "9.9.9"}, None)])
def test_any_module_that_leaves_autocast_is_named_where_both_sides_have_one_list(
    packages: dict[str, str], code: str | None
) -> None:
    """As attention that computes in fp32; of two releases, either may leave it in fp32."""
    tap = {"stage": "forward", "name": "head", "kind": "Attention", "norm": 1.0, "sha256": "a" * 64, "error": 1e-7}
    taps = [[tap | {"dtype": dtype, "envelope": 1e-2}] for dtype in ("bfloat16", "float32")]
    made = make_record().record.fingerprint.packages
    left, right = (
        whole(in_spec("speed", precision="bf16"), replay(taps=each), fingerprint={"packages": made | other})
        for each, other in zip(taps, ({}, packages), strict=True)
    )
    assert next((cause.code for cause in compare(left, right, throughput=False).causes), None) == code


def test_a_different_bit_of_an_earlier_rung_comes_before_an_error_beyond_its_limit() -> None:
    """A compiled module's wrong output is within the limit of the whole model's, its gradients are not."""
    head = {"name": "head", "kind": "Linear", "dtype": "float32", "norm": 1.0, "envelope": 1e-7}
    taps = [
        [head | {"stage": "forward", "sha256": mark * 64, "error": 1e-7}, head | {"stage": "gradient", **rest}]
        for mark, rest in (("a", {"sha256": "b" * 64, "error": 1e-7}), ("c", {"sha256": "d" * 64, "error": 0.5}))
    ]
    trials = [
        {"change": "compile=off", "stage": "gradient", "name": "head", "before": 0.5, "after": 1e-7, "limit": 1e-3}
    ]
    judgement = compare(whole(replay(taps=taps[0])), whole(replay(taps=taps[1], trials=trials)), throughput=False)
    assert [(cause.code, cause.sure) for cause in judgement.causes] == [("operator", "confirmed")]
    assert judgement.first_divergence.stage == "forward"


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


HEAD = {"name": "head", "kind": "Linear", "dtype": "float32", "norm": 1.0, "envelope": 1e-2, "sha256": "a" * 64}
NORM = HEAD | {"name": "norm", "kind": "LayerNorm"}


def in_use(*taps: Content, **plan: Any) -> LoadedRecord:
    """Return a record whose replay has these tensors."""
    change = replay(taps=[{"stage": "forward", "error": 1e-3} | tap for tap in taps])
    return whole(in_spec("speed", precision="bf16"), change, **plan)


def named(left: LoadedRecord, right: LoadedRecord) -> list[tuple[str, str]]:
    judgement = compare(left, right, throughput=False)
    assert (judgement.verdict == "pass") == (not judgement.causes)
    return [(cause.code, judgement.first_divergence.at) for cause in judgement.causes]


def test_a_replay_that_does_not_repeat_itself_is_named_before_the_rung_that_shows_it() -> None:
    left, wrong = in_use(NORM), NORM | {"error": 0.5, "sha256": "b" * 64}

    def unsteady(content: Content) -> None:
        content["evidence"]["speed"]["production"]["repeated"] = False

    assert named(left, edit(in_use(wrong), unsteady)) == [("nondeterminism", "norm")]
    # So is the reference's: their kernels sum in no fixed order.
    assert named(edit(left, unsteady), edit(in_use(wrong), unsteady)) == [("operator", "norm")]
