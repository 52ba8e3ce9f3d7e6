"""Whether two runs may round differently, decided by measured operations.

Equal digests of all operations: equal bits are due, whatever else differs. Different ones of nearly equal numbers: the
difference of the training's bits is excused, and its size decides. An operation whose numbers differ by more than
rounding computes something else, and excuses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from plumbline.judge.suspects import differences, suspects_for
from plumbline.schema.evidence import NativeOperation
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.sketch import relative_error
from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import floor_of

SOFTWARE = ("accelerate", "apex", "bitsandbytes", "flash-attn", "peft", "torch", "transformers", "triton")
"""Packages whose code decides the order of a model's or an optimizer's operations."""
_IDENTITY = re.compile(r"hostname|gpus\.\d+\.(uuid|pci)")
"""Fields that name a machine: equal machines differ in them."""
_MACHINE = re.compile(
    r"cpu\.(model|isa|num_threads)|gpus\..*|driver|cuda|cudnn|nccl|num_processes|topology\..*|numerics\..*"
)
"""Fields of a machine, without its variables: they excuse rounding where a record has no digests of operations."""
_COMPILER = r"|os|container_image|environment\.(TORCHINDUCTOR|TORCHDYNAMO|TORCH_COMPILE|TRITON)_(?!CACHE).*"
"""Fields by which a compiled model's kernels are chosen: the C++ compiler is the system's."""
_NUM_NAMED = 3


def other_software(left: RunRecord, right: RunRecord) -> bool:
    """Return whether a package that decides operation order differs."""
    ours, theirs = (side.fingerprint.packages for side in (left, right))
    return any(ours.get(name) != theirs.get(name) for name in SOFTWARE)


def has_equal_lists(left: RunRecord, right: RunRecord) -> bool:
    """Return whether autocast keeps the same operations in fp32 on both sides."""
    sides = [side.fingerprint for side in (left, right)]
    return not other_software(left, right) and bool(sides[0].gpus) == bool(sides[1].gpus)


def rounds_differently(left: RunRecord, right: RunRecord, part: str) -> tuple[Statement, ...]:
    """Return why a training part's bits may differ; empty if never."""
    lines = [line for line in differences(left.fingerprint, right.fingerprint) if _counts(line)]
    software = [line for line in lines if _name(line) in {f"packages.{name}" for name in SOFTWARE}]
    ours, theirs = (side.fingerprint.operations.get(part, ()) for side in (left, right))
    if not lines:
        return ()  # of equal machines, different operations are a fault, too
    is_compiled = has_compiled(left, part) or has_compiled(right, part)
    if is_compiled or not ours or not theirs:
        # A compiler's own kernels are not among the operations.
        known = _MACHINE.pattern + (_COMPILER if is_compiled else "")
        return tuple(line for line in lines if line in software or re.fullmatch(known, _name(line)))
    if processes := [line for line in lines if _name(line) == "num_processes"]:
        return tuple(processes)  # their batches, and so their operations, have other shapes
    changed = list(_changed(ours, theirs, left.spec.precision_of(part)))
    if not changed:
        return tuple(software)
    names = ", ".join(changed[:_NUM_NAMED]) + (", …" if len(changed) > _NUM_NAMED else "")
    measured = fact("native.operations", num=len(changed), total=len(ours), part=part, names=names)
    return (measured, *suspects_for("kernel", lines))


def _name(line: str) -> str:
    return line.partition(": ")[0]


def _counts(line: str) -> bool:
    """Return whether a fingerprint difference can explain different rounding."""
    name, _, values = line.partition(": ")
    if name.startswith("mantissa_bits."):
        return False  # a number format is a cause of its own, and excuses nothing
    if name.startswith("numerics.") and "absent" in values.split(" → "):
        return False
    return not _IDENTITY.fullmatch(name)


def has_compiled(record: RunRecord, part: str) -> bool:
    """Return whether a training part ran through torch.compile."""
    by_spec = getattr(getattr(record.spec, part), "compile", False)
    return bool(by_spec or record.fingerprint.numerics.get(f"{part}.compiled"))


def kept_bits(record: RunRecord, part: str) -> dict[str, int]:
    """Return the measured mantissa bits of each operator in a training part."""
    named = {f"{'' if '.' in name else 'probe.'}{name}": num for name, num in record.fingerprint.mantissa_bits.items()}
    return {name.removeprefix(f"{part}."): num for name, num in named.items() if name.startswith(f"{part}.")}


def _changed(
    ours: tuple[NativeOperation, ...], theirs: tuple[NativeOperation, ...], precision: Precision
) -> Iterator[str]:
    """Yield the operations that round differently on the two sides."""
    known = {operation.name: operation for operation in theirs}
    for operation in ours:
        other = known.get(operation.name, operation)
        if operation.sha256 != other.sha256 and _is_rounding(operation, other, precision):
            yield operation.name


def _is_rounding(operation: NativeOperation, other: NativeOperation, precision: Precision) -> bool:
    error = relative_error(np.array(operation.sketch), np.array(other.sketch))
    return error is not None and error <= floor_of("gradient", precision)
