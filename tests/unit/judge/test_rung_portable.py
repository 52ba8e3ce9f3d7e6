"""Rungs of the portable bits: the first difference, proven steps, and a different order, each in both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.portable import device, portable, portable_findings, proven_steps, reordered
from plumbline.records import LoadedRecord
from tests.kept_results import keep
from tests.said import said

from .rung_records import Change, Content, both, side


def leg(**plan: Any) -> LoadedRecord:
    return side(leg=True, **plan)


def in_leg(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"]["portable"].update(changes)


PLACES: dict[str, tuple[str, str | None]] = {
    "0/outputs/layer.norm": ("forward", "layer.norm"), "0/loss": ("loss", "loss"), "1/loss": ("forward", "logits"),
    "0/gradients/layer.linear.weight": ("gradient", "layer.linear.weight"),
    "1/weights/layer.linear.weight": ("optimizer", "layer.linear.weight"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_portable_bits_that_differ_name_stage_step_and_tensor(place: str) -> None:
    plain = leg()
    found, other = both(portable, plain, leg(portable={place: "f" * 16}))
    assert (found.at.stage, found.at.at, found.at.step) == (*PLACES[place], int(place[0]))
    assert other.at == found.at
    assert both(reordered, plain, leg(portable={place: "f" * 16})) == (None, None)
    assert both(proven_steps, plain, leg(portable={place: "f" * 16})) == (0, 0)


def test_the_first_portable_difference_is_that_of_the_order_of_computation() -> None:
    both_of_two = {"0/gradients/embed.weight": "f" * 16, "0/gradients/layer.linear.weight": "f" * 16}
    found, _ = both(portable, leg(), leg(portable=both_of_two))
    assert found.at.at == "layer.linear.weight"
    found, _ = both(portable, leg(), leg(portable={"0/outputs/head": "f" * 16, "0/outputs/embed": "f" * 16}))
    assert found.at.at == "embed"

    def other_outputs(*names: str) -> Change:
        def change(content: Content) -> None:
            steps = content["evidence"]["probe"]["portable"]["steps"]
            steps[0]["outputs"] = [*steps[0]["outputs"], *((name, "a" * 16) for name in names)]

        return change

    found, other = both(portable, leg(), side(other_outputs("extra"), leg=True))
    assert found.at.at == other.at.at == "extra"
    assert both(portable, leg(), side(other_outputs("extra#1"), leg=True)) == (None, None)
    found, _ = both(portable, leg(), leg(portable={"1/loss": None}))
    assert found.at.step == 1
    same = [leg(portable={"0/loss": None}) for _ in range(2)]
    assert both(portable, *same)[0] is not None


def test_equal_legs_prove_their_steps_and_an_operation_or_a_device_prevents_the_proof() -> None:
    plain = leg()
    assert both(proven_steps, plain, plain) == (2, 2)
    assert [each.outcome for each in both(portable_findings, plain, plain)[0]] == ["pass"]

    def shorter(content: Content) -> None:
        portable_leg = content["evidence"]["probe"]["portable"]
        portable_leg["steps"] = portable_leg["steps"][:1]

    assert both(proven_steps, plain, side(shorter, leg=True)) == (1, 1)
    assert both(proven_steps, side(shorter, leg=True), side(shorter, leg=True)) == (1, 1)
    assert both(portable, plain, side(shorter, leg=True)) == (None, None)
    unportable = leg(unportable="aten.sin")
    found, other = both(portable_findings, plain, unportable)
    assert "the candidate calls aten.sin" in said(found[0].detail)
    assert "the reference calls aten.sin" in said(other[0].detail)
    assert len(both(portable_findings, unportable, unportable)[0]) == 2
    assert both(proven_steps, plain, unportable) == (0, 0)
    broken = leg(repeated=False)
    assert both(device, plain, plain) == (None, None)
    found, other = both(device, plain, broken)
    assert (said(found.findings[0].detail), said(other.findings[0].detail)) == (
        "on the device of the candidate", "on the device of the reference",
    )  # fmt: skip
    assert "reference and candidate" in said(both(device, broken, broken)[0].findings[0].detail)
    changed = leg(portable={"0/loss": "f" * 16})
    assert both(portable, broken, changed) == both(portable, side(leg=False), changed) == (None, None)
    assert both(proven_steps, plain, broken) == both(proven_steps, plain, side(leg=False)) == (0, 0)
    assert both(device, side(leg=False), broken) == (None, None)
    assert both(portable_findings, side(leg=False), unportable) == ([], [])
    no_probe = side(lambda c: c["evidence"].update(probe=None))
    assert both(portable, no_probe, changed) == both(reordered, no_probe, changed) == (None, None)


@pytest.mark.parametrize(
    ("place", "sketch", "size", "limit", "slices"),
    [
        ("0/outputs/layer.norm", "0/forward layer.norm", 1.0, 1e-12, 2),
        ("0/outputs/layer.norm", "0/gradient layer.linear.weight", 1.0, 1e-12, 2),
        ("0/outputs/layer.norm", "0/gradient head.weight", 1e-6, 1e-9, 2),  # measured by the largest gradient
        ("0/outputs/layer.norm", "0/gradient layer.linear.weight", 1.0, 2.5e-6, 1),
        ("1/gradients/embed.weight", "1/gradient layer.linear.weight", 1.0, 2.5e-6, 2),
        ("1/loss", "1/gradient layer.linear.weight", 1.0, None, 2),
        ("0/weights/embed.weight", "0/weight layer.linear.weight", 1.0, 2e-15, 2),
        ("0/weights/embed.weight", "0/weight layer.linear.weight", 1.0, 2e-15, 1),
        ("0/gradients/embed.weight", "0/weight layer.linear.weight", 1.0, math.inf, 2),
    ],
)  # fmt: skip
def test_a_different_order_of_operations_moves_all_numbers_of_a_stage_by_last_bits(
    place: str, sketch: str, size: float, limit: float | None, slices: int
) -> None:
    digests = {place: "0x1.8p-1" if place.endswith("loss") else "f" * 16}
    reference = side(in_leg(slices=slices), leg=True, has_portable_sketches=True)
    edges = (0.9, 1.1) if limit not in (None, math.inf) else (0.0, 1e-3)
    verdicts = []
    for edge in edges:
        value = size + edge * (limit or 0.0) * size if limit not in (None, math.inf) else size + edge
        sketches = {sketch: value}
        right = side(
            in_leg(slices=slices), leg=True, has_portable_sketches=True, portable=digests, portable_sketches=sketches
        )
        found, _ = both(reordered, reference, right)
        both(portable, reference, right)
        verdicts.append(found is not None)
    assert verdicts == {None: [False, False], math.inf: [True, True]}.get(limit, [True, False])


def test_losses_and_sketches_that_are_missing_or_malformed_are_no_order() -> None:
    reference = leg(has_portable_sketches=True)
    near = (0.75 * (1 + 0.9e-12)).hex()
    for value, is_order in ((near, True), ((0.75 * (1 + 1.2e-12)).hex(), False), ("x", False), ("0x1p9999", False)):
        right = leg(has_portable_sketches=True, portable={"0/loss": value})
        assert (both(reordered, reference, right)[0] is not None) is is_order
    lost = leg(has_portable_sketches=True, portable={"0/loss": None})
    assert both(reordered, reference, lost) == (None, None)
    moved = leg(has_portable_sketches=False, portable={"0/loss": near})
    assert both(reordered, reference, moved) == (None, None)
    assert both(reordered, leg(), moved) == (None, None)

    def edit(name: str, sketch: list[float] | None) -> Change:
        def change(content: Content) -> None:
            step = content["evidence"]["probe"]["portable"]["steps"][0]
            sketches = [(key, value) for key, value in step["sketches"] if key != name]
            step["sketches"] = [*sketches, (name, sketch)] if sketch else sketches

        return change

    changes = {"leg": True, "has_portable_sketches": True, "portable": {"0/loss": near}}
    assert both(reordered, reference, side(edit("gradient embed.weight", None), **changes)) == (None, None)
    again = side(edit("gradient embed.weight#1", [9.0] * 8), **changes)
    assert both(reordered, reference, again)[0] is not None
    # A small gradient is measured by a thousandth of the largest.
    large = ("gradient embed.weight", [0.0, 8.0, *[0.0] * 6])
    for off, is_order in ((7.5e-15, True), (8.5e-15, False)):
        left = side(
            edit(*large), edit("gradient head.weight", [1e-6, *[0.0] * 7]), leg=True, has_portable_sketches=True
        )
        right = side(edit(*large), edit("gradient head.weight", [1e-6 + off, *[0.0] * 7]), **changes)
        assert (both(reordered, left, right)[0] is not None) is is_order
    empty = [0.0] * 8
    zero = side(edit("weight embed.weight", empty), leg=True, has_portable_sketches=True)
    for sketch, is_order in ((empty, True), ([0.0, 1e-30, *empty[2:]], False)):
        right = side(
            edit("weight embed.weight", sketch),
            leg=True, has_portable_sketches=True, portable={"0/weights/head.weight": "f" * 16},
        )  # fmt: skip
        assert (reordered(Pair(zero, right)) is not None) is is_order
        keep(reordered(Pair(zero, right)))
