"""Number formats of two tensors, by their types. Pure.

Autocast fixes the format of a module's output, not the kernel. Devices and versions of the software differ in what
autocast leaves in fp32, but never in linear layers. A compiled model leaves out the rounding between operations that it
fuses, as it chooses by machine, so that only the outputs of two compiled models are comparable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from plumbline.judge.native import SOFTWARE
from plumbline.records import LoadedRecord
from plumbline.schema.spec import MANTISSA_BITS

T = TypeVar("T")
_BITS = {
    "float8_e5m2": 2, "float8_e4m3fn": 3, "bfloat16": MANTISSA_BITS["bf16"], "float16": MANTISSA_BITS["fp16"],
    "float32": MANTISSA_BITS["fp32"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """One tensor of two runs, beside each other."""

    error: float | None
    limit: float
    """The error that the part's precision explains."""
    differs: bool
    """Whether the tensors differ by more than what is expected."""
    dtypes: tuple[str, str]

    @property
    def is_other(self) -> bool:
        """Return whether the types differ, and a rounding to the shorter one explains the error.

        A module that computes something else may give another type, too.
        """
        rounding = 2.0 ** -min(_BITS.get(dtype, MANTISSA_BITS["fp64"]) for dtype in self.dtypes)
        is_small = self.error is not None and self.error <= max(self.limit, rounding)
        return self.dtypes[0] != self.dtypes[1] and is_small and self.limit < 1


def first_other(tensors: Iterable[tuple[T, Beside]]) -> tuple[T, Beside] | None:
    """Return the first tensor of another format; `None` if a different formula may come before it."""
    for tensor, beside in tensors:
        if beside.is_other:
            return tensor, beside
        if beside.differs:
            return None
    return None


def has_equal_lists(reference: LoadedRecord, candidate: LoadedRecord) -> bool:
    """Return whether autocast leaves the same operations in fp32: on one kind of device, with the same software."""
    sides = [side.record.fingerprint for side in (reference, candidate)]
    packages = [{name: side.packages.get(name) for name in SOFTWARE} for side in sides]
    return packages[0] == packages[1] and bool(sides[0].gpus) == bool(sides[1].gpus)
