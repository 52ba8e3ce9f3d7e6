"""Windows of the same step on both sides, and the excuse of a different order of operations.

A library that computes the same formula in a different order of operations has different portable bits, too. Where all
numbers of a window's first different stage are as close as its arithmetic's own last bits, the window proves nothing:
equal machines are judged by their bits, others by their own proofs. Without the sketches, which measure that, 6 of 55
controls are flagged (ADR 0036).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from plumbline.judge.native import SOFTWARE
from plumbline.judge.pair import Pair
from plumbline.schema import limits
from plumbline.schema.evidence import PortableEvidence, PortableWindow
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import common, first_steps, window_parts
from plumbline.schema.spec import PartName
from plumbline.schema.stage import Stage
from plumbline.schema.tolerance import floor_of, relative

Windows = tuple[PortableWindow, PortableWindow]
_COUNTED = ("inputs", "labels", "evaluation")
"""Parts of an evaluation that no module computes: what it reads, and how it counts."""
_KINDS: dict[Stage, str] = {"forward": "forward", "optimizer": "optimizer", "evaluation": "loss"}


def other_software(pair: Pair) -> bool:
    """Return whether a package that decides operation order differs.

    The same code computes in the same order on every device: without a different version, no difference is excused.
    """
    left, right = (side.record.fingerprint.packages for side in (pair.reference, pair.candidate))
    return any(left.get(name) != right.get(name) for name in SOFTWARE)


def _has_other_order(pair: Pair, part: PartName) -> bool:
    """Return whether a version or an attention kernel may compute the same formula in another order.

    In half precision two attention kernels round at other places, also in portable arithmetic; a probe's is fp64.
    """
    kernels = {side.record.fingerprint.numerics.get(f"{part}.attention") for side in (pair.reference, pair.candidate)}
    return other_software(pair) or (part != "probe" and len(kernels) > 1)


def sides_of(pair: Pair, part: PartName) -> list[tuple[str, PortableEvidence]]:
    """Return the windows of each side that has any, with its role."""
    trained = [(name, getattr(side.record.evidence, part)) for name, side in pair.sides]
    return [(name, each.portable) for name, each in trained if each is not None and each.portable is not None]


def common_windows(pair: Pair, part: PartName) -> list[Windows]:
    """Return the windows of the same step on both sides."""
    sides = [found for _, found in sides_of(pair, part)]
    return list(common(sides[0], sides[1])) if len(sides) == 2 else []


def first_apart(pair: Pair, part: PartName) -> Windows | None:
    """Return the first windows that differ by more than the order of operations."""
    for windows, _, sizes in _differing(pair, part):
        if not sizes or part == "probe":  # whose later windows follow from this one
            return None if sizes else windows
    return None


def excused(pair: Pair) -> tuple[Statement, float] | None:
    """Return where the order of operations separates the probe's windows, and by how much."""
    found = next(_differing(pair, "probe"), None)
    if found is None or not found[2]:
        return None
    (ours, theirs), (stage, name), sizes = found
    if stage == "forward":  # not a module that one side does not call
        called = dict(theirs.outputs)
        name = next((key for key, digest in ours.outputs if called.get(key, digest) != digest), name)
    stage = "optimizer" if stage == "clipped" else stage
    return fact("windows.place", stage=stage, step=ours.step, name=name), max(sizes)


def _differing(pair: Pair, part: PartName) -> Iterator[tuple[Windows, tuple[Stage, str], list[float]]]:
    """Yield windows that differ, with the first place, and its sizes if the order of operations explains them."""
    for windows in common_windows(pair, part):
        if (place := next(window_parts(*windows), None)) is not None:
            yield windows, place, _sizes_of_order(pair, part, windows, place)


def _sizes_of_order(pair: Pair, part: PartName, windows: Windows, place: tuple[Stage, str]) -> list[float]:
    """Return the sizes of a stage's differences if the order of operations explains them, or none.

    A difference of one slice is as large as a small fault's: only different software or attention excuses it.
    """
    stage, name = place
    if stage == "batch" or (stage == "evaluation" and name in _COUNTED):
        return []
    if not _has_other_order(pair, part) and _limit(pair, part, windows[0], stage) > limits.EXACT:
        return []
    # Sketches show clipped gradients in the update alone.
    stage = "optimizer" if stage == "clipped" else stage
    limit, found = _limit(pair, part, windows[0], stage), _sizes(*windows, stage, part)
    return found if all(size <= limit for size in found) else []  # a NaN is no small difference


def _limit(pair: Pair, part: PartName, window: PortableWindow, stage: Stage) -> float:
    """Return the largest error that a different operation order can cause."""
    if part != "probe":
        return floor_of(_KINDS.get(stage, "gradient"), pair.reference.record.spec.precision_of(part))
    if stage == "optimizer":
        return limits.ORDER_OF_UPDATE
    side = sides_of(pair, part)[0][1]
    is_exact = side.slices > 1 and window.outputs and window.step < first_steps(side)
    return limits.EXACT if is_exact else limits.ORDER_OF_ONE_SLICE


def _sizes(left: PortableWindow, right: PortableWindow, stage: Stage, part: PartName) -> list[float]:
    """Return the relative differences of a stage's sketched tensors.

    The fp64 of a probe bounds gradients, too. Behind outputs that round differently in a training's format nothing
    does, as gradients of rows may cancel: by 20% of a tensor between torch 2.4 and 2.13.
    """
    if stage == "evaluation" and left.evaluation is not None and right.evaluation is not None:
        # It may differ first: it runs with biases that the step updated, which initially are zero.
        return [relative(left.evaluation.loss, right.evaluation.loss)]
    ours, theirs = ({key: value for key, value in side.sketches if "#" not in key} for side in (left, right))
    outputs = dict(left.outputs), dict(right.outputs)
    idle = {f"forward {name}" for name in outputs[0].keys() ^ outputs[1].keys()}  # the module around each is compared
    ours, theirs = ({key: value for key, value in side.items() if key not in idle} for side in (ours, theirs))
    if ours.keys() != theirs.keys() or not ours or left.loss is None or right.loss is None:
        return []
    followed = ("forward", "gradient") if part == "probe" else ("forward",)
    kinds = {"forward": followed, "optimizer": ("optimizer",)}.get(stage, ("gradient",))
    largest = {kind: max((math.hypot(*ours[key]) for key in ours if _is(key, kind)), default=0.0) for kind in kinds}
    found = [relative(_number(left.loss), _number(right.loss))]
    for kind in kinds:
        least = limits.SMALL_GRADIENT * largest[kind] if kind == "gradient" else 0.0
        for key in (key for key in ours if _is(key, kind)):
            distance = math.dist(ours[key], theirs[key])
            scale = max(math.hypot(*ours[key]), least)
            found.append(distance / scale if scale else (math.inf if distance else 0.0))
    return found


def _number(text: str) -> float | None:
    """Parse a hexadecimal fp64 number; return `None` if malformed."""
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError):
        return None


def _is(key: str, kind: str) -> bool:
    return key.startswith(f"{kind} ")
