"""Number formats of two tensors: by the bits of mantissa that their values use. Pure.

Autocast fixes the format of a module's output and of a parameter's gradient, not the kernel: SDPA and eager attention
differ in the formats between their products, which are no output of a module. So outputs and gradients are comparable
between kernels, with two exceptions. Devices and versions of the software differ in what autocast leaves in fp32, but
never in linear layers. A compiled model leaves out the rounding between operations that it fuses, as it chooses by
machine, so that only the outputs of two compiled models are comparable.

Without formats by bits in use, 6 of 216 names are lost (ADR 0036).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from plumbline.judge.native import SOFTWARE
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.mantissa import FORMATS, MantissaCounts, bits_in_use, bits_of

T = TypeVar("T")
Bits = tuple[int, int]
"""Bits of mantissa in use by the reference and by the candidate."""


@dataclass(frozen=True, slots=True)
class Beside:
    """One tensor of two runs, beside each other."""

    counts: tuple[MantissaCounts, MantissaCounts]
    error: float | None
    limit: float = 0.0
    """The error that the part's precision explains."""
    differs: bool = True
    """Whether the tensors differ by more than what is expected."""
    dtypes: tuple[str, str] = ("", "")

    @property
    def bits(self) -> Bits:
        """Return the bits in use, or those of the type if they were not measured."""
        ours, theirs = (
            bits_in_use(counts) if counts else bits_of(dtype)
            for counts, dtype in zip(self.counts, self.dtypes, strict=True)
        )
        return ours, theirs

    @property
    def may_be_other(self) -> bool:
        """Return whether a rounding to the shorter of two formats explains the error: half a unit, and its sketch.

        A module that computes something else may give another format, too. A tensor whose limit is its own size is
        rounding only: residues of sums, whose bits show no format.
        """
        if self.limit >= 1 or self.bits[0] == self.bits[1]:
            return False
        return self.error is not None and self.error <= max(self.limit, self.rounding)

    @property
    def rounding(self) -> float:
        """Return the relative error of a rounding to the shorter of both formats."""
        return float(2.0 ** -min(self.bits))

    @property
    def is_other(self) -> bool:
        """Return whether the format is certainly different: of the type, or of the values in use."""
        return self.may_be_other and (self.dtypes[0] != self.dtypes[1] or bits_apart(*self.counts) is not None)


def first_other(tensors: Iterable[tuple[T, Beside]]) -> tuple[T, Beside] | None:
    """Return the first tensor of another format; `None` if a different formula may come before it.

    A tensor of few values, such as a head's bias, differs by its format first, and does not show it; nor does a sum of
    such values, whose error the format of a tensor before it explains.
    """
    before = 0.0
    for tensor, beside in tensors:
        if beside.is_other:
            return tensor, beside
        if beside.may_be_other:
            before = max(before, beside.rounding)
        elif beside.differs and (beside.error is None or beside.error > before):
            return None
    return None


def backwards(
    modules: Mapping[str, tuple[MantissaCounts, MantissaCounts]], parameters: Mapping[str, Beside]
) -> list[tuple[str, Beside]]:
    """Return the gradients of outputs and of parameters, by name, in the order in which the backward pass makes them.

    `modules`, in the order of execution, have the counts of their outputs' gradients: a tensor between two parameters,
    whose error shows in the gradient of the next parameter.
    """
    owned: dict[str, list[str]] = {}
    for name in parameters:
        owned.setdefault(name.rpartition(".")[0], []).append(name)
    names = [name for module in reversed(list(modules)) for name in (module, *reversed(owned.pop(module, [])))]
    names += [name for rest in reversed(owned.values()) for name in reversed(rest)]
    found, error = list[tuple[str, Beside]](), None
    for name in reversed(names):
        if name in parameters:
            error = parameters[name].error
        found.append((name, parameters.get(name) or Beside(modules[name], error, differs=False)))
    return found[::-1]


def bits_apart(reference: MantissaCounts, candidate: MantissaCounts) -> Bits | None:
    """Return the bits in use of two samples of one tensor, if one certainly fits a format that the other does not.

    A sample that was not measured shows no difference.
    """
    if not reference or not candidate:
        return None
    bits = bits_in_use(reference), bits_in_use(candidate)
    short, long = (reference, candidate) if bits[0] < bits[1] else (candidate, reference)
    return bits if bits[0] != bits[1] and _certainty(short, long, min(bits)) >= limits.CERTAIN_BITS else None


def _certainty(short: MantissaCounts, long: MantissaCounts, bits: int) -> float:
    """Return the bits of the chance that values as those of `long` all fit the format of `short`.

    There are as many independent values as `long` has different ones. Each needs more than `bits` with the share that
    `long` shows, by Jeffreys' estimate, and fits by chance once in two to the number of the additional bits.
    """
    share = (2 * long[2 + FORMATS.index(bits)] + 1) / (2 * long[1] + 2)
    return min(short[0], long[1]) * min(-math.log2(1 - share), bits_in_use(long) - bits)


def has_equal_lists(reference: LoadedRecord, candidate: LoadedRecord) -> bool:
    """Return whether autocast leaves the same operations in fp32: on one kind of device, with the same software."""
    sides = [side.record.fingerprint for side in (reference, candidate)]
    packages = [{name: side.packages.get(name) for name in SOFTWARE} for side in sides]
    return packages[0] == packages[1] and bool(sides[0].gpus) == bool(sides[1].gpus)
