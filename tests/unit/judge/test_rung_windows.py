"""Windows of the probe: the first difference, its limit, and proven steps, each in both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.windows import proven_steps, side_mismatch, window_findings, window_mismatch
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Finding
from tests.said import said

from .rung_records import Change, Content, both, side


def made(**plan: Any) -> LoadedRecord:
    return side(has_windows=True, **plan)


def apart(pair: Pair) -> Mismatch | None:
    return window_mismatch(pair, "probe")


def within(pair: Pair) -> Mismatch | None:
    return side_mismatch(pair, "probe")


def findings(pair: Pair) -> list[Finding]:
    return window_findings(pair, "probe")


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


def test_equal_windows_prove_their_steps_and_a_device_prevents_the_proof() -> None:
    plain = made()
    assert both(proven_steps, plain, plain) == (2, 2)
    assert [each.outcome for each in both(findings, plain, plain)[0]] == ["pass"]

    def shorter(content: Content) -> None:
        portable = content["evidence"]["probe"]["portable"]
        portable["windows"] = portable["windows"][:1]

    assert both(proven_steps, plain, side(shorter, has_windows=True)) == (1, 1)
    assert both(proven_steps, side(shorter, has_windows=True), side(shorter, has_windows=True)) == (1, 1)
    assert both(apart, plain, side(shorter, has_windows=True)) == (None, None)
    broken = made(repeated=False)
    assert both(within, plain, plain) == (None, None)
    found, other = both(within, plain, broken)
    assert (said(found.findings[0].detail), said(other.findings[0].detail)) == (
        "on the device of the candidate", "on the device of the reference",
    )  # fmt: skip
    assert "reference and candidate" in said(both(within, broken, broken)[0].findings[0].detail)
    other_loss = made(portable={"0/loss": "f" * 16})
    assert both(proven_steps, plain, other_loss) == (0, 0)
    assert [found.at.at for found in both(apart, broken, other_loss)] == ["device", "device"]
    assert both(apart, side(has_windows=False), other_loss) == (None, None)
    assert both(proven_steps, plain, broken) == both(proven_steps, plain, side(has_windows=False)) == (0, 0)
    assert both(within, side(has_windows=False), broken) == (None, None)
    assert both(findings, side(has_windows=False), plain) == ([], [])
    no_probe = side(lambda c: c["evidence"].update(probe=None))
    assert both(apart, no_probe, other_loss) == (None, None)


SKETCHED = {"has_windows": True, "has_portable_sketches": True}


@pytest.mark.parametrize(
    ("place", "sketch", "size", "limit"),
    [
        ("0/outputs/layer.norm", "0/forward layer.norm", 1.0, 1e-12),
        ("1/gradients/embed.weight", "1/gradient embed.weight", 1.0, 1e-12),
        ("0/gradients/head.weight", "0/gradient head.weight", 1e-6, 1e-9),  # measured by the largest gradient
        ("0/clipped/embed.weight", "0/clipped embed.weight", 1.0, 1e-12),
        ("0/weights/embed.weight", "0/optimizer embed.weight", 1.0, 1e-12),
        ("0/outputs/layer.norm", "0/gradient layer.linear.weight", 1.0, None),  # another tensor's
    ],
)
def test_rounding_of_fp64_is_no_difference(place: str, sketch: str, size: float, limit: float | None) -> None:
    found = []
    for edge in (0.9, 1.1):
        moved = {sketch: size * (1 + edge * (limit or 0.0))}
        right = side(portable={place: "f" * 16}, portable_sketches=moved, **SKETCHED)
        found.append(both(apart, side(**SKETCHED), right)[0] is not None)
    assert found == ([False, True] if limit is not None else [False, False])


def test_losses_and_sketches_that_are_missing_or_malformed_are_differences() -> None:
    reference, near = made(has_portable_sketches=True), (0.75 * (1 + 0.9e-12)).hex()
    for value, is_apart in ((near, False), ((0.75 * (1 + 1.2e-12)).hex(), True), ("x", True), ("0x1p9999", True)):
        right = made(has_portable_sketches=True, portable={"0/loss": value})
        assert (both(apart, reference, right)[0] is not None) is is_apart
    other = {"0/weights/embed.weight": "f" * 16}
    assert both(apart, reference, made(has_portable_sketches=True, portable=other)) == (None, None)
    assert both(apart, reference, made(has_portable_sketches=False, portable=other))[0].at.at == "embed.weight"
    nothing = {"0/optimizer embed.weight": math.nan}
    with pytest.raises(ValidationError):
        made(has_portable_sketches=True, portable=other, portable_sketches=nothing)


@pytest.mark.parametrize(("gradient", "differs"), [(1e-13, False), (1e-11, True)])
def test_an_update_by_a_gradient_of_zero_is_rounding(gradient: float, *, differs: bool) -> None:
    """AdamW divides a gradient by its own size: what is rounding moves the weight by any share of the rate."""
    sides = []
    for weight in (0.0, 1e-9):
        numbers = {"0/gradient head.weight": gradient, "0/optimizer head.weight": weight}
        digests = {"0/gradients/head.weight": "e" * 16, "0/weights/head.weight": f"{weight:016.0e}"[-1] * 16}
        sides.append(side(portable=digests, portable_sketches=numbers, **SKETCHED))
    assert (both(apart, *sides)[0] is not None) is differs
