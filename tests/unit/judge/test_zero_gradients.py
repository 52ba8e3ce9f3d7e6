"""A gradient that is zero by mathematics says nothing between kernels, and hides nothing beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.own_distance import OwnDistances
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_json
from plumbline.schema.tolerance import least_gradient

from .conftest import make_record, other_kernel
from .made_records import Change, Content, edit
from .made_records import probe as probe_of


def zero_gradient(size: float, *, window: Change | None = None, **changes: Any) -> LoadedRecord:
    """Return a record whose gradient of `embed.weight` is noise of `size`, with a window that shows it or another."""
    made = make_record(**changes)

    def small(content: Content) -> None:
        for place, tap in enumerate(probe_of(content)["taps"]):
            if (tap["stage"], tap["name"]) == ("gradient", "embed.weight"):
                noise = np.random.default_rng(place).normal(size=64) * size / 8
                content["arrays"]["sketches"]["sketch"][place] = noise
                tap.update({"norm": size, "sha256": digest_json([size, place])})

    return edit(made, small, window or with_window())


def with_window(*, is_zero: bool = True) -> Change:
    """Add the first window: the run itself, without its rounding in a gradient of zero."""

    def change(content: Content) -> None:
        sketches = []
        for tap, numbers in zip(probe_of(content)["taps"], content["arrays"]["sketches"]["sketch"], strict=True):
            noise = np.random.default_rng(9).normal(size=8) * 1e-18
            is_noise = is_zero and (tap["stage"], tap["name"]) == ("gradient", "embed.weight")
            small = noise if is_noise else numbers.reshape(8, -1).sum(axis=1)
            if tap["step"] == 0:
                sketches.append((f"{tap['stage']} {tap['name']}", tuple(map(float, small))))
        found = make_record(has_windows=True).record.evidence.probe.portable  # type: ignore[union-attr]
        windows = [{**found.windows[0].to_json(), "sketches": sketches}]  # type: ignore[union-attr]
        probe_of(content)["portable"] = {"windows": windows, "repeated": True}

    return change


REAL = with_window(is_zero=False)
"""A window that has the gradient, too."""


def over(*sides: LoadedRecord) -> set[str]:
    """Return the stages of the tensors that are beyond their limits."""
    pair, stages = Pair(*sides), ("forward", "gradient", "optimizer")
    errors = [error for step in pair.tap_steps for stage in stages for error in pair.errors(step, stage)]  # type: ignore[arg-type]
    return {error.reference.stage for error in errors if error.over}


def test_a_gradient_that_is_zero_by_construction_has_no_limit() -> None:
    assert over(zero_gradient(1e-12), zero_gradient(1e-10)) == set()


@pytest.mark.parametrize("side", [0, 1])
def test_a_gradient_that_is_real_in_one_of_both_runs_still_counts(side: int) -> None:
    windows = (REAL, None) if side else (None, REAL)
    candidate = zero_gradient(1e-3, window=windows[1], fingerprint=other_kernel())
    assert "gradient" in over(zero_gradient(1e-5, window=windows[0]), candidate)


def test_a_tiny_gradient_that_the_window_shows_to_be_real_counts() -> None:
    sides = zero_gradient(1e-9, window=REAL), zero_gradient(2e-9, window=REAL, fingerprint=other_kernel())
    assert over(*sides) == {"gradient"}


def test_a_fault_beside_a_gradient_of_zero_is_found() -> None:
    candidate = zero_gradient(1e-10, fingerprint=other_kernel(), gradient_factor=1.25)
    assert "gradient" in over(zero_gradient(1e-12), candidate)


def test_a_gradient_of_zero_that_is_not_finite_never_passes() -> None:
    candidate = zero_gradient(1e-10, fingerprint=other_kernel())
    for place, tap in enumerate(candidate.record.evidence.probe.taps):  # type: ignore[union-attr]
        if (tap.stage, tap.name) == ("gradient", "embed.weight"):
            candidate.arrays["sketches"]["sketch"][place] = math.nan
    assert over(zero_gradient(1e-12), candidate) == {"gradient"}
    assert compare(zero_gradient(1e-12), candidate).verdict == "drift"


def lost_windows(content: Content) -> None:
    probe_of(content)["portable"] = None


@pytest.mark.parametrize("changes", [(), (lost_windows,)], ids=["window", "lost windows"])
def test_a_gradient_of_zero_says_nothing_without_windows(changes: tuple[Change, ...]) -> None:
    def judged(size: float, window: Change | None = None, **more: Any) -> set[str]:
        reference, candidate = (
            zero_gradient(1e-12),
            zero_gradient(size, window=window, fingerprint=other_kernel(), **more),
        )
        return over(edit(reference, *changes), edit(candidate, *changes))

    assert judged(5e-12) == judged(1e-10) == set()
    assert "gradient" in judged(1e-10, gradient_factor=1.25)


def test_the_weights_of_a_gradient_of_zero_are_rounding_too() -> None:
    """AdamW divides a gradient by its own size: its update is as large as any other, in a direction of chance."""

    def moved(content: Content) -> None:
        taps = probe_of(content)["taps"] = list(probe_of(content)["taps"])
        for place, tap in enumerate(taps):
            if (tap["stage"], tap["name"]) == ("optimizer", "embed.weight"):
                content["arrays"]["sketches"]["sketch"][place] *= 1.01
                taps[place] = {**tap, "sha256": digest_json(["moved", place])}

    candidate = edit(zero_gradient(1e-10, fingerprint=other_kernel()), moved)
    assert over(zero_gradient(1e-12), candidate) == {"optimizer"}
    assert over(*(edit(each, lost_windows) for each in (zero_gradient(1e-12), candidate))) == set()


def test_windows_measure_the_steps_that_follow_each_other_from_the_start() -> None:
    def later(content: Content) -> None:
        (window,) = probe_of(content)["portable"]["windows"]
        window["step"] = 1

    def distances(*changes: Change) -> list[float | None]:
        own = OwnDistances(edit(make_record(), with_window(), *changes))
        taps = own.loaded.record.evidence.probe.taps  # type: ignore[union-attr]
        return [own.distance(place) for place, tap in enumerate(taps) if (tap.step, tap.stage) == (0, "forward")]

    assert set(distances()) == {0.0}
    assert set(distances(later)) == {None}
    own = OwnDistances(edit(make_record(), with_window()))
    assert [own.distance(place) for place in (-1, 99)] == [None, None]


def test_half_precision_has_the_least_gradient_of_fp32() -> None:
    assert [least_gradient(precision) for precision in ("bf16", "fp16", "tf32", "fp32")] == [2.0**-20] * 4
    assert least_gradient("fp64") == 2.0**-49


@pytest.mark.parametrize(("share", "over"), [(9e-7, False), (1e-6, True)])
def test_a_gradient_is_small_beside_the_largest_of_its_step(share: float, over: bool) -> None:
    largest = max(tap.norm or 0.0 for tap in make_record().record.evidence.probe.taps  # type: ignore[union-attr]
                  if (tap.step, tap.stage) == (0, "gradient"))  # fmt: skip
    sides = [edit(zero_gradient(share * largest * factor), lost_windows) for factor in (0.5, 1.0)]
    for pair in (Pair(*sides), Pair(*reversed(sides))):
        found = [error.over for error in pair.errors(0, "gradient") if error.reference.name == "embed.weight"]
        assert found == [over]
