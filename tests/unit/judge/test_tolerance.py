"""Constants of the tolerances on both sides of their boundaries; see `docs/MATH.md`."""

from __future__ import annotations

import math

import pytest

from plumbline.schema.tolerance import floor_of, growth, is_rounding_only, limit, relative

UNITS = {"fp64": 2.0**-52, "fp32": 2.0**-23, "tf32": 2.0**-10, "fp16": 2.0**-10, "bf16": 2.0**-7}


@pytest.mark.parametrize("precision", UNITS)
@pytest.mark.parametrize(
    ("stage", "units"), [("forward", 40), ("loss", 40), ("gradient", 400), ("optimizer", 400), ("norm", 400)]
)
def test_floors_are_units_in_the_last_place(precision: str, stage: str, units: int) -> None:
    wanted = units if precision in ("fp32", "fp64") else 4
    assert floor_of(stage, precision) == wanted * UNITS[precision]  # type: ignore[arg-type]


def test_the_floor_lies_between_the_worst_benign_and_the_least_harmful_error_measured() -> None:
    benign, harmful = 4e-7, 6e-5
    assert 10 * benign < floor_of("forward", "fp32") < harmful / 10


def test_rounding_doubles_every_nine_steps() -> None:
    assert [growth(steps) for steps in (-3, 0, 9, 18, 27)] == [1.0, 1.0, 2.0, 4.0, 8.0]
    assert 1.07 < growth(1) < 1.09
    assert limit("forward", "fp32", 9) == 2 * floor_of("forward", "fp32")
    # Numeric gates end where the limit reaches twenty times the first one.
    assert growth(38) < 20 < growth(40)


def test_half_of_itself_makes_a_tensor_rounding_and_nothing_else() -> None:
    assert not is_rounding_only(0.499)
    assert is_rounding_only(0.5)
    assert not is_rounding_only(math.nan)


@pytest.mark.parametrize(
    ("reference", "candidate", "error"),
    [
        (2.0, 2.5, 0.25), (2.0, 1.5, 0.25), (8.0, -4.0, 1.5), (0.0, 0.0, 0.0), (0.0, 1e-9, math.inf),
        (None, 1.0, math.inf), (1.0, None, math.inf), (None, None, math.inf), (math.nan, math.nan, math.inf),
        (math.inf, math.inf, math.inf), (1.0, math.inf, math.inf), (1.0, math.nan, math.inf), (-2.0, -2.5, 0.25),
    ],
)  # fmt: skip
def test_relative_errors(reference: float | None, candidate: float | None, error: float) -> None:
    assert relative(reference, candidate) == error
