"""Limits of rounding differences between two runs; `docs/MATH.md` derives every number.

A limit is the envelope that the runs measured of themselves, times `FACTOR`, and never below a floor that depends on
the precision. After the step at which the envelope was measured, a limit doubles every `DOUBLING_STEPS`.
"""

from __future__ import annotations

import math

from plumbline.schema.spec import Precision

__all__ = [
    "DOUBLING_STEPS",
    "FACTOR",
    "ROUNDING_ONLY",
    "floor_of",
    "growth",
    "is_head",
    "is_rounding_only",
    "least_gradient",
    "limit",
    "relative",
]

FACTOR = 8.0
DOUBLING_STEPS = 9.0

_UNIT: dict[Precision, float] = {
    "fp64": 2.0**-52,
    "fp32": 2.0**-23,
    "tf32": 2.0**-10,
    "fp16": 2.0**-10,
    "bf16": 2.0**-7,
}
"""One unit in the last place of the operands."""

_FLOOR_UNITS: dict[str, float] = {"forward": 40.0, "gradient": 400.0, "weight": 400.0, "loss": 40.0, "norm": 400.0}
"""Floors in those units: 40 are 4.8e-6 in fp32, between the worst benign error seen (4e-7) and the least harmful
one (6e-5). A gradient has passed through twice as many operations and cancellations, a weight through Adam's
division."""

_COARSE_UNITS = 4.0
"""In half precision the units are themselves as large as the harmful errors of fp32; their floors are these units."""


def floor_of(stage: str, precision: Precision) -> float:
    """Return a stage's minimum limit (`forward`, `gradient`, `weight`, `loss`, `norm`)."""
    units = _FLOOR_UNITS[stage] if precision in ("fp32", "fp64") else _COARSE_UNITS
    return units * _UNIT[precision]


ROUNDING_ONLY = 0.5
"""A tensor at this relative distance from its own fp64 run has less than one correct bit. The gradient of attention's
key bias is zero by mathematics: two kernels differ there by any factor. No number format in use rounds a real tensor
by half of its size (bf16 rounds one operation by 2^-8)."""


def least_gradient(precision: Precision) -> float:
    """Return the share of a step's largest gradient below which a gradient may be rounding only.

    `FACTOR` units in the last place of fp32, in which the products of half precision are summed: 9.5e-7. Seen: the
    gradient of a key's bias 1e-11 of the largest in fp32 and 1e-7 in bf16, the smallest real one 1.5e-5.
    """
    return FACTOR * min(_UNIT[precision], _UNIT["fp32"])


_HEAD = 8
"""Minimum ratio of the width of a head's input to that of its output. A feed-forward layer narrows 4 times, to hundreds
of features, which are enough to measure an envelope; a head narrows to a few classes."""


def is_head(width: int, input_width: int) -> bool:
    """Return whether an output with `width` features is a head's, read from `input_width` features."""
    return input_width >= _HEAD * width


def is_rounding_only(own_error: float) -> bool:
    """Return whether a tensor's relative error against fp64 means pure rounding."""
    return own_error >= ROUNDING_ONLY


def growth(steps: int) -> float:
    """Return the growth factor of rounding after `steps` further steps."""
    return float(2.0 ** (max(steps, 0) / DOUBLING_STEPS))


def limit(envelope: float | None, stage: str, precision: Precision, steps: int = 0) -> float:
    """Return the maximum rounding error, `steps` after the envelope was measured."""
    measured = envelope if envelope is not None and math.isfinite(envelope) else 0.0
    return max(FACTOR * measured, floor_of(stage, precision)) * growth(steps)


def relative(reference: float | None, candidate: float | None) -> float:
    """Return |candidate - reference| / |reference|; infinite if a number is missing."""
    if reference is None or candidate is None or not math.isfinite(reference) or not math.isfinite(candidate):
        return math.inf
    if reference == candidate:
        return 0.0
    return abs(candidate - reference) / abs(reference) if reference else math.inf
