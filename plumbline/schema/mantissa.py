"""Bits of mantissa that the values of a tensor use, whatever type holds them. Pure.

A value rounded through a shorter format fits that format exactly, also after a cast back to a longer type.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

from plumbline.schema.base import Count, FailFast
from plumbline.schema.spec import MANTISSA_BITS

FORMATS = (2, 3, MANTISSA_BITS["bf16"], MANTISSA_BITS["fp16"], MANTISSA_BITS["fp32"])
"""Bits of mantissa of fp8's e5m2 and e4m3, bf16, fp16 and TF32, and fp32."""
SAMPLED = 4096
"""Maximum number of values in a sample."""
NUM_COUNTS = 2 + len(FORMATS)
_OF_TYPES = {
    "float8_e5m2": 2, "float8_e4m3fn": 3, "bfloat16": MANTISSA_BITS["bf16"], "float16": MANTISSA_BITS["fp16"],
    "float32": MANTISSA_BITS["fp32"],
}  # fmt: skip


def _sorted(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return `counts`. Raise `ValueError` for counts that no sample has."""
    if counts and (len(counts) != NUM_COUNTS or counts[0] > SAMPLED):
        raise ValueError(f"has not {NUM_COUNTS} counts of at most {SAMPLED} values")
    if any(more > most for most, more in pairwise(counts)):
        raise ValueError("has more values beyond a longer format than beyond a shorter one")
    return counts


MantissaCounts = Annotated[tuple[Count, ...], Field(max_length=NUM_COUNTS), FailFast(), AfterValidator(_sorted)]
"""Number of values in a sample, of their distinct magnitudes, and of those that do not fit each of `FORMATS`; empty if
not measured.

Zeros, powers of two and values that are not finite fit any format, and do not count."""


def bits_in_use(counts: tuple[int, ...]) -> int:
    """Return the bits of the shortest format that all values of a measured sample fit."""
    fitting = (bits for bits, beyond in zip(FORMATS, counts[2:], strict=True) if not beyond)
    return next(fitting, MANTISSA_BITS["fp64"])


def bits_of(dtype: str) -> int:
    """Return the bits of mantissa of a type."""
    return _OF_TYPES.get(dtype, MANTISSA_BITS["fp64"])


def exceeds_type(counts: tuple[int, ...], dtype: str) -> bool:
    """Return whether values need more bits than their type has."""
    return bool(counts) and bits_in_use(counts) > bits_of(dtype)
