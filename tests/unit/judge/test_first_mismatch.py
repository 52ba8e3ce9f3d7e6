"""The first different bit names its rung, and mismatches have the order of steps and rungs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.mismatches import Mismatch, Suspicion, is_same_place, with_kernel_last, without
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import other_kernels
from plumbline.judge.walk import walk
from plumbline.schema.stage import STAGES
from plumbline.schema.verdict import Divergence, Finding

from .conftest import STEPS, make_record, other_kernel
from .made_records import at_step, edit, evaluated, probe
from .made_records import without as lacking
from .rung_records import first_bits

# The first different bit.


@pytest.mark.parametrize("step", [1, 3, 4])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("field", "low", "high", "rung", "place"),
    [
        ("logits", "0" * 16, "f" * 16, "forward", "logits"),
        ("loss", 0.25, 0.75, "loss", "loss"),
        ("gradients", "0" * 16, "f" * 16, "gradient", "gradient"),
        ("clipped_norm", 0.25, 0.75, "clipped", "clipping"),
        ("weights", "0" * 16, "f" * 16, "optimizer", "optimizer"),
    ],
)
def test_the_first_different_bit_of_an_untapped_step_is_found_in_both_directions(  # noqa: PLR0917 - pytest's
    field: str, low: Any, high: Any, rung: str, place: str, swapped: bool, step: int
) -> None:
    later = at_step(5, weights="9" * 16)
    sides = [edit(make_record(), at_step(step, **{field: value})) for value in (low, high)]
    sides[1] = edit(sides[1], later)
    pair = Pair(*(reversed(sides) if swapped else sides))
    found = first_bits(pair)
    assert found is not None
    assert (found.stage, found.at.step, found.at.at) == (rung, step, place)
    assert found.suspicions[0].code == (
        "kernel" if rung in ("forward", "gradient") else found.stage.replace("clipped", "gradient")
    )
    assert (found.findings[0].observed, found.findings[0].limit) == (None, 0.0)
    # A rung that an experiment imposed is not evidence.
    imposed = first_bits(replace(pair, imposed=frozenset({rung})))
    place = (imposed.stage, imposed.at.step) if imposed else None
    assert place == (None if rung == "optimizer" else ("optimizer", 5))


@pytest.mark.parametrize("factor", [1 + 1e-7, 1 - 1e-7, 1 + 1e-3, 1 - 1e-3])
@pytest.mark.parametrize(
    ("field", "shows", "rung"),
    [
        ("defined_loss", "logits", "forward"),
        ("loss", None, "loss"),
        ("gradient_norm", "gradients", "gradient"),
        ("clipped_norm", None, "clipped"),
    ],
)
def test_a_scalar_within_rounding_suspects_a_kernel_and_beyond_it_a_formula(
    field: str, shows: str | None, rung: str, factor: float
) -> None:
    made = make_record()
    value = getattr(made.record.evidence.probe.at(3), field)  # type: ignore[union-attr]
    changes = {field: value * factor} | ({shows: "e" * 16} if shows else {})
    found = first_bits(Pair(made, edit(made, at_step(3, **changes))))
    assert found is not None
    assert (found.stage, found.at.step) == (rung, 3)
    first = found.suspicions[0].code
    assert (first == "kernel") is (abs(factor - 1) < 1e-5)
    assert "nondeterminism" in {each.code for each in found.suspicions}


@pytest.mark.parametrize("size", [1e-6, 1e-2])
@pytest.mark.parametrize(("name", "step"), [("layer.linear", 0), ("layer.norm@2", 2), ("embed@1", 1), ("head@5", 5)])
def test_the_first_module_that_differs_is_the_place(name: str, step: int, size: float) -> None:
    found = first_bits(Pair(make_record(), make_record(noise={name: size})))
    assert found is not None
    module = name.partition("@")[0]
    assert (found.stage, found.at.step, found.at.at) == ("forward", step, module if step != 1 else "logits")


def test_an_evaluation_alone_is_the_last_place_to_differ() -> None:
    made = make_record()
    other = edit(made, evaluated(logits_sha256="9" * 64))
    for pair in (Pair(made, other), Pair(other, made)):
        found = first_bits(pair)
        assert found is not None
        assert (found.stage, found.at.stage, found.at.at) == ("evaluation", "evaluation", "logits")
        assert [each.code for each in found.suspicions] == ["evaluation", "nondeterminism"]
        assert first_bits(replace(pair, imposed=frozenset({"evaluation"}))) is None
    for gone in (edit(made, lambda content: probe(content).update(evaluation=None)),):
        assert first_bits(Pair(gone, other)) is first_bits(Pair(other, gone)) is None
    assert first_bits(Pair(made, made)) is None


def test_recorded_differences_that_explain_rounding_are_listed() -> None:
    made, other = make_record(), make_record(fingerprint=other_kernel())
    assert other_kernels(Pair(made, other, rounding=("a replay",))) == ("a replay", "cpu.isa: AVX2 → AVX512")
    assert other_kernels(Pair(made, made)) == ()
    assert other_kernels(Pair(made, edit(made, lacking("model")))) == ()
    modules = make_record(modules={"layer.norm": "LayerNorm(eps=1e-3)"})
    assert len(other_kernels(Pair(made, modules))) == 1


# The order of rungs.


def item(rung: str, step: int | None, code: Any = "operator", at: str = "x", **fields: Any) -> Mismatch:
    place = Divergence(stage=rung, step=step, at=at)  # type: ignore[arg-type]
    return Mismatch(place, (Finding(check="c", outcome="drift"),), (Suspicion(code, "w"),), **fields)


@pytest.mark.parametrize(
    ("mismatch", "expected"),
    [
        (item("architecture", None), (0, 2)),
        (item("weights", 5), (0, 3)),
        (item("data", None), (math.inf, 0)),
        (item("data", 3), (3, 0)),
        (item("forward", 4), (4, STAGES.index("forward"))),
        (item("loss", 4), (4, STAGES.index("loss"))),
        (item("evaluation", None), (math.inf, STAGES.index("evaluation"))),
    ],
)
def test_a_mismatch_has_its_position_by_step_and_rung(mismatch: Mismatch, expected: tuple[float, int]) -> None:
    assert mismatch.position == expected


def test_stages_of_one_step_are_in_the_order_of_consequence() -> None:
    assert [item(stage, 2).position[1] for stage in STAGES[4:]] == list(range(4, len(STAGES)))


def test_suspicions_are_reordered_and_dropped_by_code() -> None:
    many = replace(
        item("loss", 1), suspicions=tuple(Suspicion(code, "w") for code in ("kernel", "loss", "nondeterminism"))
    )  # type: ignore[arg-type]
    assert [each.code for each in with_kernel_last(many).suspicions] == ["loss", "nondeterminism", "kernel"]
    assert [each.code for each in without("nondeterminism", many).suspicions] == ["kernel", "loss"]
    alone = item("loss", 1, "nondeterminism")
    assert without("nondeterminism", alone) == alone
    assert with_kernel_last(item("loss", 1)) == item("loss", 1)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (("forward", "a"), ("forward", "a"), True), (("forward", "a"), ("forward", "b"), False),
        (("gradient", "a"), ("gradient", "b"), True), (("gradient", "a"), ("forward", "a"), False),
        (("optimizer", "b"), ("optimizer", "a"), True), (("evaluation", "b"), ("optimizer", "b"), False),
    ],
)  # fmt: skip
def test_rounding_is_a_trace_of_the_same_rung_and_module(
    left: tuple[str, str], right: tuple[str, str], same: bool
) -> None:
    assert is_same_place(item(left[0], 1, at=left[1]), item(right[0], 4, at=right[1])) is same


PLANS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a loss that shows late": ({"loss_factor": 1.01, "loss_shows_from": 3}, ["loss"]),
    "a loss and a gradient": ({"loss_factor": 1.01, "gradient_factor_at": 1}, ["loss"]),
    "a late gradient": ({"gradient_factor_at": 4}, ["gradient"]),
    "a late update": ({"update_factor": {3: 1.5}}, ["optimizer"]),
    "a rounded module, then a formula": ({"noise": {"embed": 1e-7, "layer.norm@2": 1e-2}}, ["kernel"]),
    "a formula, then another": ({"noise": {"head@2": 1e-2, "embed@5": 1e-2}}, ["operator"]),
    "a decay": ({"decay": 0.05}, ["optimizer"]),
    "rates and weights": ({"rates": [3e-3] * STEPS, "weights_seed": 6}, ["weights.init", "schedule"]),
    "labels, a module and the evaluation": (
        {"labels": [1] * 30, "noise": {"embed": 1e-2}, "evaluation_mode": True}, ["data.labels"],
    ),
    "a number format": ({"dtype": "float16"}, ["precision"]),
    "fewer bits": ({"noise": {"layer.linear@2": 1e-3}}, ["operator"]),
    "a seed and a sign": ({"seed": 4, "gradient_sign": -1.0}, ["rng"]),
}  # fmt: skip


NUMBERS = {
    "a late gradient", "a late update", "a rounded module, then a formula", "a formula, then another", "fewer bits",
}  # fmt: skip
"""Plans that differ from the reference by native numbers alone."""


@pytest.mark.parametrize("swapped", [False, True], ids=["candidate", "reference"])
@pytest.mark.parametrize("explained", [False, True], ids=["equal", "other"])
@pytest.mark.parametrize("name", PLANS)
def test_each_combination_of_faults_has_its_causes_in_order(name: str, explained: bool, swapped: bool) -> None:
    changes, codes = PLANS[name]
    sides = [make_record(), make_record(**changes, fingerprint=other_kernel() if explained else {})]
    if swapped:
        sides.reverse()
    judgement = compare(sides[0], sides[1])
    is_drift = not explained or name not in NUMBERS
    assert judgement.verdict == ("drift" if is_drift else "pass")
    walked = walk(Pair(sides[0], sides[1]))
    assert [mismatch.suspicions[0].code for mismatch in walked.mismatches] == (codes if is_drift else [])
    assert not walked.equal
    assert bool(walked.rounding) is explained
