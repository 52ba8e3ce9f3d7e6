"""Windows of the probe: the first difference, proven steps, and a different order, each in both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.order import excused
from plumbline.judge.rungs.windows import proven_steps, side_mismatch, window_findings, window_mismatch
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Finding
from tests.said import said

from .rung_records import Change, Content, both, side


def made(**plan: Any) -> LoadedRecord:
    return side(has_windows=True, **plan)


def changed(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"]["portable"].update(changes)


def apart(pair: Pair) -> Mismatch | None:
    return window_mismatch(pair, "probe")


def within(pair: Pair) -> Mismatch | None:
    return side_mismatch(pair, "probe")


def findings(pair: Pair) -> list[Finding]:
    return window_findings(pair, "probe")


PLACES: dict[str, tuple[str, str | None]] = {
    "0/outputs/layer.norm": ("forward", "layer.norm"), "0/loss": ("loss", "loss"), "1/loss": ("forward", "logits"),
    "0/gradients/layer.linear.weight": ("gradient", "layer.linear.weight"),
    "1/weights/layer.linear.weight": ("optimizer", "layer.linear.weight"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_portable_bits_that_differ_name_stage_step_and_tensor(place: str) -> None:
    plain = made()
    found, other = both(apart, plain, made(portable={place: "f" * 16}))
    assert (found.at.stage, found.at.at, found.at.step) == (*PLACES[place], int(place[0]))
    assert other.at == found.at
    assert both(excused, plain, made(portable={place: "f" * 16})) == (None, None)
    assert both(proven_steps, plain, made(portable={place: "f" * 16})) == (0, 0)


def test_the_first_portable_difference_is_that_of_the_order_of_computation() -> None:
    both_of_two = {"0/gradients/embed.weight": "f" * 16, "0/gradients/layer.linear.weight": "f" * 16}
    found, _ = both(apart, made(), made(portable=both_of_two))
    assert found.at.at == "layer.linear.weight"
    found, _ = both(apart, made(), made(portable={"0/outputs/head": "f" * 16, "0/outputs/embed": "f" * 16}))
    assert found.at.at == "embed"

    def other_outputs(*names: str) -> Change:
        def change(content: Content) -> None:
            steps = content["evidence"]["probe"]["portable"]["windows"]
            steps[0]["outputs"] = [*steps[0]["outputs"], *((name, "a" * 16) for name in names)]

        return change

    found, other = both(apart, made(), side(other_outputs("extra"), has_windows=True))
    assert found.at.at == other.at.at == "extra"
    assert both(apart, made(), side(other_outputs("extra#1"), has_windows=True)) == (None, None)
    found, _ = both(apart, made(), made(portable={"1/loss": None}))
    assert found.at.step == 1
    same = [made(portable={"0/loss": None}) for _ in range(2)]
    assert both(apart, *same)[0] is not None


def test_equal_windows_prove_their_steps_and_an_operation_or_a_device_prevents_the_proof() -> None:
    plain = made()
    assert both(proven_steps, plain, plain) == (2, 2)
    assert [each.outcome for each in both(findings, plain, plain)[0]] == ["pass"]

    def shorter(content: Content) -> None:
        portable = content["evidence"]["probe"]["portable"]
        portable["windows"] = portable["windows"][:1]

    assert both(proven_steps, plain, side(shorter, has_windows=True)) == (1, 1)
    assert both(proven_steps, side(shorter, has_windows=True), side(shorter, has_windows=True)) == (1, 1)
    assert both(apart, plain, side(shorter, has_windows=True)) == (None, None)
    unportable = made(unportable="aten.sin")
    found, other = both(findings, plain, unportable)
    assert "the candidate calls aten.sin" in said(found[-1].detail)
    assert "the reference calls aten.sin" in said(other[-1].detail)
    assert [each.outcome for each in both(findings, unportable, unportable)[0]] == ["pass", *["inconclusive"] * 2]
    assert both(proven_steps, plain, unportable) == (0, 0)
    broken = made(repeated=False)
    assert both(within, plain, plain) == (None, None)
    found, other = both(within, plain, broken)
    assert (said(found.findings[0].detail), said(other.findings[0].detail)) == (
        "on the device of the candidate", "on the device of the reference",
    )  # fmt: skip
    assert "reference and candidate" in said(both(within, broken, broken)[0].findings[0].detail)
    other_loss = made(portable={"0/loss": "f" * 16})
    assert [found.at.at for found in both(apart, broken, other_loss)] == ["device", "device"]
    assert both(apart, side(has_windows=False), other_loss) == (None, None)
    assert both(proven_steps, plain, broken) == both(proven_steps, plain, side(has_windows=False)) == (0, 0)
    assert both(within, side(has_windows=False), broken) == (None, None)
    assert [len(found) for found in both(findings, side(has_windows=False), unportable)] == [1, 1]
    no_probe = side(lambda c: c["evidence"].update(probe=None))
    assert both(apart, no_probe, other_loss) == both(excused, no_probe, other_loss) == (None, None)


@pytest.mark.parametrize(
    ("place", "sketch", "size", "limit", "slices"),
    [
        ("0/outputs/layer.norm", "0/forward layer.norm", 1.0, 1e-12, 2),
        ("0/outputs/layer.norm", "0/gradient layer.linear.weight", 1.0, 1e-12, 2),
        ("0/outputs/layer.norm", "0/gradient head.weight", 1e-6, 1e-9, 2),  # measured by the largest gradient
        ("0/outputs/layer.norm", "0/gradient layer.linear.weight", 1.0, 2.5e-6, 1),
        ("1/gradients/embed.weight", "1/gradient layer.linear.weight", 1.0, 2.5e-6, 2),
        ("1/loss", "1/gradient layer.linear.weight", 1.0, None, 2),
        ("0/weights/embed.weight", "0/optimizer layer.linear.weight", 1.0, 2e-15, 2),
        ("0/weights/embed.weight", "0/optimizer layer.linear.weight", 1.0, 2e-15, 1),
        ("0/gradients/embed.weight", "0/optimizer layer.linear.weight", 1.0, math.inf, 2),
    ],
)  # fmt: skip
def test_a_different_order_of_operations_moves_all_numbers_of_a_stage_by_last_bits(
    place: str, sketch: str, size: float, limit: float | None, slices: int
) -> None:
    digests = {place: "0x1.8p-1" if place.endswith("loss") else "f" * 16}
    reference = side(changed(slices=slices), has_windows=True, has_portable_sketches=True)
    edges = (0.9, 1.1) if limit not in (None, math.inf) else (0.0, 1e-3)
    verdicts = []
    for edge in edges:
        value = size + edge * (limit or 0.0) * size if limit not in (None, math.inf) else size + edge
        sketches = {sketch: value}
        right = side(
            changed(slices=slices), has_windows=True, has_portable_sketches=True, portable=digests,
            portable_sketches=sketches, fingerprint={"packages": {"torch": "2.12.0"}},
        )  # fmt: skip
        found, _ = both(excused, reference, right)
        both(apart, reference, right)
        verdicts.append(found is not None)
    assert verdicts == {None: [False, False], math.inf: [True, True]}.get(limit, [True, False])


def test_losses_and_sketches_that_are_missing_or_malformed_are_no_order() -> None:
    reference = made(has_portable_sketches=True)
    near = (0.75 * (1 + 0.9e-12)).hex()
    for value, is_order in ((near, True), ((0.75 * (1 + 1.2e-12)).hex(), False), ("x", False), ("0x1p9999", False)):
        right = made(has_portable_sketches=True, portable={"0/loss": value})
        assert (both(excused, reference, right)[0] is not None) is is_order
    lost = made(has_portable_sketches=True, portable={"0/loss": None})
    assert both(excused, reference, lost) == (None, None)
    moved = made(has_portable_sketches=False, portable={"0/loss": near})
    assert both(excused, reference, moved) == (None, None)
    assert both(excused, made(), moved) == (None, None)

    def edit(name: str, sketch: list[float] | None) -> Change:
        def change(content: Content) -> None:
            step = content["evidence"]["probe"]["portable"]["windows"][0]
            sketches = [(key, value) for key, value in step["sketches"] if key != name]
            step["sketches"] = [*sketches, (name, sketch)] if sketch else sketches

        return change

    changes = {"has_windows": True, "has_portable_sketches": True, "portable": {"0/loss": near}}
    assert both(excused, reference, side(edit("gradient embed.weight", None), **changes)) == (None, None)
    again = side(edit("gradient embed.weight#1", [9.0] * 8), **changes)
    assert both(excused, reference, again)[0] is not None
    # A small gradient is measured by a thousandth of the largest.
    large = ("gradient embed.weight", [0.0, 8.0, *[0.0] * 6])
    for off, is_order in ((7.5e-15, True), (8.5e-15, False)):
        left = side(
            edit(*large), edit("gradient head.weight", [1e-6, *[0.0] * 7]), has_windows=True, has_portable_sketches=True
        )
        right = side(edit(*large), edit("gradient head.weight", [1e-6 + off, *[0.0] * 7]), **changes)
        assert (both(excused, left, right)[0] is not None) is is_order
    empty = [0.0] * 8
    zero = side(edit("optimizer embed.weight", empty), has_windows=True, has_portable_sketches=True)
    for sketch, is_order in ((empty, True), ([0.0, 1e-30, *empty[2:]], False)):
        right = side(
            edit("optimizer embed.weight", sketch),
            has_windows=True, has_portable_sketches=True, portable={"0/weights/head.weight": "f" * 16},
        )  # fmt: skip
        assert (excused(Pair(zero, right)) is not None) is is_order
        excused(Pair(zero, right))
