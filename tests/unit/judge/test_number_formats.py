"""An operator that computes in another number format than the reference's is named, at every part's settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from plumbline.judge import compare
from plumbline.judge.number_formats import Beside
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import bits
from plumbline.judge.rungs.formats import formats
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Judgement

from .conftest import make_record, other_kernel
from .made_records import Content, edit, evaluation, in_spec, whole
from .rung_numbers import STEP, scaled
from .rung_records import side
from .test_withheld import replay, trail

Counts = tuple[int, ...]
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


FP32, FP16 = (1000, 900, 890, 870, 800, 700, 0), (1000, 900, 880, 860, 500, 0, 0)
BF16_BITS, FP8 = (1000, 500, 490, 470, 0, 0, 0), (1000, 30, 0, 0, 0, 0, 0)
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


@pytest.mark.parametrize("stage", ["forward", "gradient"])
@pytest.mark.parametrize(("ours", "theirs"), [(FP32, FP16), (FP16, BF16_BITS), (BF16_BITS, FP8), (BF16_BITS, FP32)])
@pytest.mark.parametrize("isa", ["", "AVX2"])
def test_values_in_fewer_or_more_bits_than_their_type_shows_are_a_drift_of_precision(
    stage: str, ours: Counts, theirs: Counts, isa: str
) -> None:
    machine = {"fingerprint": other_kernel()} if isa else {}
    left, right = in_use(NORM | {"stage": stage, "mantissa": ours}), NORM | {"stage": stage, "mantissa": theirs}
    assert named(left, in_use(right | {"sha256": "b" * 64}, **machine)) == [("precision", "norm")]


def test_bits_in_use_that_chance_explains_are_no_format() -> None:
    """Few values, values of which most fit anyway, and samples that nobody measured."""
    for ours, theirs in (
        ((1, 1, 1, 1, 1, 1, 0), (1, 1, 0, 0, 0, 0, 0)), ((900, 900, 890, 870, 12, 0, 0), (900, 900, 890, 870, 0, 0, 0)),
        (FP32, ()), ((), FP8), ((0,) * 7, FP32), (FP32, (*FP32[:5], 699, 0)),
    ):  # fmt: skip
        assert named(in_use(NORM | {"mantissa": ours}), in_use(NORM | {"mantissa": theirs})) == []


def test_a_head_of_a_few_logits_shows_fp8() -> None:
    """In fp8 its sixteen values have few magnitudes; those of the reference show how many are independent."""
    left, right = (16, 9, 9, 9, 0, 0, 0), (11, 4, 0, 0, 0, 0, 0)
    assert named(in_use(HEAD | {"mantissa": left}), in_use(HEAD | {"mantissa": right})) == [("precision", "head")]


def test_a_different_formula_is_no_format_though_its_bits_differ() -> None:
    left = in_use(NORM | {"mantissa": FP32})
    wrong = NORM | {"mantissa": BF16_BITS, "error": 0.2, "sha256": "b" * 64}
    assert [code for code, _ in named(left, in_use(wrong))] == ["operator"]
    later = NORM | {"name": "later", "mantissa": BF16_BITS}
    before = in_use(NORM | {"mantissa": FP32}, later | {"mantissa": FP32})
    assert [code for code, _ in named(before, in_use(wrong | {"mantissa": FP32}, later))] == ["operator"]


@pytest.mark.parametrize(("error", "found"), [(2e-3, ("precision", "norm")), (0.5, ("gradient", "norm.weight"))])
def test_the_gradient_of_an_output_shows_a_format_that_no_parameter_does(error: float, found: tuple[str, str]) -> None:
    """A parameter's gradient is a sum of many rows; a lost residual changes the bits of a gradient and far more."""
    weight = NORM | {"stage": "gradient", "name": "norm.weight", "mantissa": FP32}
    ours = in_use(NORM | {"mantissa": FP32, "passed": FP32}, weight)
    theirs = in_use(
        NORM | {"mantissa": FP32, "passed": BF16_BITS}, weight | {"error": error, "envelope": 1.0, "sha256": "b" * 64}
    )
    assert named(ours, theirs) == [found]


@pytest.mark.parametrize(("norm", "found"), [(0.501, [("precision", "head.weight")]), (0.9, [])])
def test_gradients_that_processes_exchange_in_fewer_bits_are_named(norm: float, found: list[tuple[str, str]]) -> None:
    """As by a hook that compresses them to bf16: a replay has one process, and exchanges none."""

    def exchanged(counts: Counts, norm: float) -> Any:
        changes = {"gradient_norms": [norm], "gradient_mantissas": [("head.weight", counts), ("head.bias", FP32)]}
        return lambda content: trail(content).update(changes)

    sides = [
        edit(in_use(NORM | {"mantissa": FP32}, **machine), exchanged(counts, size))
        for counts, size, machine in ((FP32, 0.5, {}), (BF16_BITS, norm, {"fingerprint": other_kernel()}))
    ]
    assert named(*sides) == found


def test_a_replay_that_does_not_repeat_itself_is_named_before_the_rung_that_shows_it() -> None:
    left, wrong = in_use(NORM | {"mantissa": FP32}), NORM | {"mantissa": FP32, "error": 0.5, "sha256": "b" * 64}

    def unsteady(content: Content) -> None:
        content["evidence"]["speed"]["production"]["repeated"] = False

    assert named(left, edit(in_use(wrong), unsteady)) == [("nondeterminism", "norm")]
    # So is the reference's: their kernels sum in no fixed order.
    assert named(edit(left, unsteady), edit(in_use(wrong), unsteady)) == [("operator", "norm")]


def test_a_gradient_that_rounds_otherwise_comes_before_one_that_is_rounding_only() -> None:
    """As of a backward pass in fp64: the gradient of a key's bias is residues of sums, of few bits by chance."""
    key, bias = (NORM | {"name": name, "stage": "gradient", "mantissa": FP32} for name in ("key.bias", "head.bias"))
    changed = {"error": 1.1e-3, "sha256": "b" * 64}
    assert named(in_use(key | {"mantissa": FP16}, bias), in_use(key | changed, bias | changed)) == [
        ("gradient", "head.bias")
    ]


def test_residues_of_sums_show_no_format() -> None:
    """Counts of an attention's key bias on an AVX-512 CPU and on an H200: its gradient is zero by mathematics."""
    cpu, gpu = (125, 117, 111, 103, 51, 0, 0), (69, 42, 31, 21, 0, 0, 0)
    assert Beside((cpu, gpu), error=1.05, limit=0.01).is_other is False
    assert Beside((cpu, gpu), error=1.05, limit=4.0).is_other is False
    assert Beside((cpu, gpu), error=1e-3, limit=0.01).is_other is True


def test_a_tensor_of_few_values_differs_first_and_does_not_show_the_format() -> None:
    """The gradient of a head's bias comes first; a wrong formula there is not excused by a format behind it."""
    few, many = NORM | {"name": "bias", "stage": "gradient"}, NORM | {"stage": "gradient"}
    ours = in_use(many | {"mantissa": FP16}, few | {"mantissa": (2, 1, 1, 1, 1, 0, 0)})
    for error, found in ((0.1, ("precision", "norm")), (0.5, ("gradient", "bias"))):
        bias = few | {"mantissa": (2, 1, 0, 0, 0, 0, 0), "error": error, "sha256": "b" * 64}
        theirs = in_use(many | {"mantissa": FP8, "error": 0.1, "sha256": "b" * 64}, bias)
        assert named(ours, theirs) == [found]


def test_autocast_and_compilers_choose_formats_by_software_but_not_of_linear_layers() -> None:
    """Between releases, and beside a compiler, outputs of linear layers alone are comparable."""
    other = {"fingerprint": {"packages": {"torch": "2.4.0"}}}
    for kind, found in (("LayerNorm", []), ("Linear", [("precision", "norm")])):
        left, right = (
            in_use(NORM | {"kind": kind, "mantissa": bits}, **plan) for bits, plan in ((FP16, {}), (BF16_BITS, other))
        )
        assert named(left, right) == found

    def compiled(content: Content) -> None:
        content["evidence"]["speed"]["trail"]["settings"] = {"compiled": True}

    fused = edit(in_use(NORM | {"stage": "gradient", "mantissa": FP32}), compiled)
    assert named(in_use(NORM | {"stage": "gradient", "mantissa": BF16_BITS}), fused) == []


@pytest.mark.parametrize(("tap", "verdict"), [
    ({"dtype": "bfloat16", "mantissa": FP32}, "invalid"), ({"mantissa": ()}, "invalid"), ({"mantissa": FP32}, "pass"),
])  # fmt: skip
def test_bits_in_use_are_checked_where_they_enter(tap: Content, verdict: str) -> None:
    """A type cannot hold more bits than it has; a record measures all of its tensors or, of a release before, none."""
    made = in_use(HEAD | {"mantissa": FP32}, NORM | tap)
    assert compare(made, made, throughput=False).verdict == verdict
    for counts in ((1, 2, 0, 0, 0, 0, 0), (5000, 0, 0, 0, 0, 0, 0), (1, 1)):
        with pytest.raises(ValidationError):
            in_use(HEAD | {"mantissa": counts})


def test_the_probe_names_the_format_of_an_output_between_two_modules() -> None:
    left, right = (
        side(scaled("forward", "head", 1 + error, mantissa=bits)) for error, bits in ((0, FP32), (3e-4, FP16))
    )
    found = formats(Pair(left, right), STEP)
    assert found is not None
    assert (found.suspicions[0].code, found.at.at) == ("precision", "head")
    assert formats(Pair(left, side(scaled("forward", "head", 1.5, mantissa=FP16))), STEP) is None
    # Rounded weights show in every output: where a step begins with other weights, values name no format.
    assert formats(Pair(left, right), STEP, values=False) is None


def leg(mark: str, mantissa: Counts, size: float = 1.0, *, passed: Counts = (), wrong: float = 1.0) -> Content:
    """Return a leg of a learning curve with one output and one gradient, `wrong` times its value."""
    name, weight = "layer.norm", "layer.norm.weight"
    digests = {
        "gradients": [(weight, ("a" if wrong == 1 else "b") * 16)], "weights": [], "outputs": [(name, mark * 16)],
    }  # fmt: skip
    more = {
        "sketches": [(f"forward {name}", (size, *[1.0] * 7)), (f"gradient {weight}", (wrong, *[1.0] * 7))],
        "mantissas": [(f"forward {name}", mantissa), (f"gradient {weight}", FP32), (f"passed {name}", passed)],
    }
    step = {"step": 0, "loss": "0x1p-1"} | digests | more
    return {"at": 0, "training": step, "clipped": [], "evaluation": evaluation(0), "evaluated": []}


@pytest.mark.parametrize(("wrong", "code"), [(1.1, "precision"), (9.0, "operator")])
def test_a_leg_of_the_curve_names_the_format_that_the_replay_of_speed_names(wrong: float, code: str) -> None:
    """As one module in fp8 in all parts: its values differ by no more than the format explains."""
    sides = [
        curve(leg("a", FP32), [{"rank": 1, "at": 0, "stage": "forward", "name": "layer.norm", **each}])
        for each in ({}, {"mantissas": (FP32, FP16)})
    ]
    assert [named(side, side) for side in sides] == [[("operator", "layer.norm")], [("precision", "layer.norm")]]
    assert named(curve(leg("a", FP32)), curve(leg("b", FP8, wrong))) == [(code, "layer.norm")]
    code = "gradient" if wrong > 2 else "precision"
    name = "layer.norm" if code == "precision" else "layer.norm.weight"
    passed = [curve(leg("a", FP32, **more)) for more in ({"passed": FP32}, {"passed": FP8, "wrong": wrong})]
    assert named(*passed) == [(code, name)]


def curve(place: Content, ranks: Sequence[Content] = ()) -> LoadedRecord:
    return whole(lambda content: content["evidence"]["learn"].update(legs={"legs": [place], "ranks": list(ranks)}))
