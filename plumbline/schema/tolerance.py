"""Rounding limits between two runs. `docs/MATH.md` derives every number.

A limit depends on the precision, and doubles every `DOUBLING_STEPS`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from plumbline.schema import limits
from plumbline.schema.evidence import ModelEvidence
from plumbline.schema.production import KernelError
from plumbline.schema.proof import Draws, ProofError
from plumbline.schema.spec import MANTISSA_BITS, Precision
from plumbline.schema.stage import Stage

UNIT: dict[Precision, float] = {precision: 2.0**-bits for precision, bits in MANTISSA_BITS.items()}
"""One unit in the last place of the operands."""


def floor_of(stage: str, precision: Precision) -> float:
    """Return a stage's minimum rounding limit (`forward`, `gradient`, `optimizer`, `loss`, `norm`)."""
    units = limits.FLOOR_UNITS[stage] if precision in ("fp32", "fp64") else limits.COARSE_UNITS
    return units * UNIT[precision]


def proof_limit(found: ProofError) -> float:
    """Return a tensor's maximum distance from its definition, in half spacings of its format.

    A sum in fp32 is off by at most a few roots of its number of terms, in any order; a shorter format adds one rounding
    of the result and of what a module holds within. An update is measured in units of what it rounds.
    """
    return limits.PROOF["optimizer"] if found.stage == "optimizer" else sum_limit(found.stage, found.dtype, found.terms)


def is_over(found: ProofError) -> bool:
    """Return whether a tensor's distance exceeds its limit or is not finite."""
    return found.error is None or not found.error <= proof_limit(found)


def clipping_limit(precision: Precision, model: ModelEvidence | None) -> float:
    """Return the maximum relative error of a gradient's norm that a native norm has clipped."""
    longest = max((math.prod(each.shape) for each in model.parameters), default=0) if model is not None else 0
    return floor_of("norm", precision) + native_norm_limit(longest)


def native_norm_limit(longest: int) -> float:
    """Return the maximum relative error of a norm in fp32 whose longest tensor has so many elements."""
    return limits.SQUARES * longest * 2.0**-24


def sum_limit(stage: Stage, dtype: str, terms: int) -> float:
    """Return the maximum error of a sum of `terms` numbers, in roundings."""
    sums = limits.PROOF["sum"] * math.sqrt(terms)
    if dtype in ("bfloat16", "float16"):
        unit = 2.0 ** -(MANTISSA_BITS["bf16" if dtype == "bfloat16" else "fp16"] + 1)
        return limits.PROOF.get(stage, 0.0) + sums * 2.0**-24 / unit
    return limits.PROOF["fp32"] + sums


def is_off(draws: Draws) -> bool:
    """Return whether dropout kept an implausible fraction (chance below 10^-9), the same of all rows, or all."""
    expected = draws.elements * (1 - draws.rate)
    return (
        draws.alike > 0
        or not draws.calls
        or abs(draws.kept - expected) > limits.PROOF["draws"] * math.sqrt(max(expected * draws.rate, 1.0))
    )


def least_gradient(precision: Precision) -> float:
    """Return the relative gradient size below which gradients may be pure rounding.

    `FACTOR` units in the last place of fp32, in which the products of half precision are summed: 9.5e-7. Seen: the
    gradient of a key's bias 1e-11 of the largest in fp32 and 1e-7 in bf16, the smallest real one 1.5e-5.
    """
    return limits.FACTOR * min(UNIT[precision], UNIT["fp32"])


def is_rounding_only(own_error: float) -> bool:
    """Return whether a tensor's error against fp64 means pure rounding."""
    return own_error >= limits.ROUNDING_ONLY


def growth(steps: int) -> float:
    """Return how much rounding errors grow over `steps` further steps."""
    return float(2.0 ** (max(steps, 0) / limits.DOUBLING_STEPS))


def limit(stage: str, precision: Precision, step: int = 0) -> float:
    """Return a stage's maximum rounding error at `step`."""
    return floor_of(stage, precision) * growth(step)


def kernel_limits(kernels: Sequence[KernelError]) -> list[tuple[KernelError, float]]:
    """Return each compiled tensor's maximum distance from fp64.

    Its kernels round at other places of the same formula: the distance of the same tensor without the compiler, or the
    median of its stage where that happens to be smaller, shows the size of one such draw. Both may be zero by chance
    where a tensor has very few numbers: no limit is below the rounding of fp32.
    """
    least: dict[str, float] = {}
    for stage in ("forward", "gradient"):
        typical = statistics.median([each.eager or 0.0 for each in kernels if each.stage == stage] or [0.0])
        least[stage] = max(limits.PRODUCTION_FACTOR * typical, floor_of(stage, "fp32"))
    return [(each, max(limits.PRODUCTION_FACTOR * (each.eager or 0.0), least[each.stage])) for each in kernels]


def relative(reference: float | None, candidate: float | None) -> float:
    """Return |candidate - reference| / |reference|; infinite if a number is missing."""
    if reference is None or candidate is None or not math.isfinite(reference) or not math.isfinite(candidate):
        return math.inf
    if reference == candidate:
        return 0.0
    return abs(candidate - reference) / abs(reference) if reference else math.inf


def loss_gap(reference: float | None, candidate: float | None) -> float:
    """Return the distance of two losses, relative to 1 if that is more; infinite if a number is missing.

    A loss changes by at most the change of its logits, and a small loss has no smaller logits.
    """
    gap = relative(reference, candidate)
    return gap if reference is None or abs(reference) >= 1 or candidate is None else abs(candidate - reference)
