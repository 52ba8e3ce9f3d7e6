"""Portable arithmetic: equal bits prove equal formulas, different bits a real difference.

Portable arithmetic has the same bits on every CPU and GPU. No tolerance is used here, with one exception: a
library that computes the same formula in a different order of operations has different bits too. Where all numbers of
the first different stage are as close as the arithmetic's own last bits, the portable runs prove nothing: equal
machines are judged by their bits, others by their own proofs. Without their sketches, which measure that, 6 of 55
controls are flagged (ADR 0036).
"""

from __future__ import annotations

import math
from dataclasses import replace

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.native import SOFTWARE
from plumbline.judge.pair import Pair
from plumbline.schema import limits
from plumbline.schema.evidence import PortableEvidence, PortableStep
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import CLIPPED, leg_parts
from plumbline.schema.tolerance import relative
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Stage

_WHAT: dict[Stage, tuple[CauseCode, str]] = {
    "forward": ("operator", "computes a different result"),
    "loss": ("loss", "the loss is a different function of equal logits"),
    "gradient": ("gradient", "gets a different gradient from an equal loss"),
    "optimizer": ("optimizer", "is updated differently from an equal gradient"),
}


def portable_legs(pair: Pair) -> tuple[PortableEvidence, PortableEvidence] | None:
    """Return both runs' portable evidence, or `None`."""
    if pair.probes is None:
        return None
    left, right = (probe.portable for probe in pair.probes)
    return (left, right) if left is not None and right is not None else None


def device(pair: Pair) -> Mismatch | None:
    """Return a mismatch if the portable run did not repeat its bits.

    Processes with different batches cannot repeat each other: then only the different batch is reported.
    """
    legs = portable_legs(pair)
    if legs is None or _reads_otherwise(pair):
        return None
    if all(leg.repeated for leg in legs):
        return _of_process(pair, legs)
    side = " and ".join(name for name, leg in zip(("reference", "candidate"), legs, strict=True) if not leg.repeated)
    finding = Finding(
        check="probe.device", outcome="drift", metric=fact("portable.repetitions"), observed=0,
        limit=1, detail=fact("portable.on-device", side=side),
    )  # fmt: skip
    why = fact("portable.device", side=side)
    evidence = (fact("portable.one-result"),)
    at = Divergence(stage="forward", step=0, at="device")
    return Mismatch("forward", at, (finding,), (Suspicion("device", why, evidence, shown=True),), basis="given")


def _of_process(pair: Pair, legs: tuple[PortableEvidence, PortableEvidence]) -> Mismatch | None:
    """Return a mismatch if one process's portable bits differ from the others'."""
    if next(leg_parts(*legs), None) is not None and excused(pair) is None:
        return None
    for side, leg in zip(("reference", "candidate"), legs, strict=True):
        for found in leg.ranks[:1] if leg.ranks and leg.ranks[0].stage in _WHAT else ():
            apart = _mismatch(found.stage, found.at, found.name, legs)
            why = fact("curve-legs.rank", rank=found.rank, side=side, part=apart.suspicions[0].why)
            return replace(apart, suspicions=(replace(apart.suspicions[0], why=why),), basis="given")
    return None


def _reads_otherwise(pair: Pair) -> bool:
    return any(left.batch != right.batch for left, right in pair.common[:1])


def proven_steps(pair: Pair) -> int:
    """Return the number of steps with formulas proven equal."""
    legs = portable_legs(pair)
    if legs is None or device(pair) is not None or any(leg.unportable for leg in legs):
        return 0
    return 0 if next(leg_parts(*legs), None) else min(_first_steps(leg) for leg in legs)


def _first_steps(leg: PortableEvidence) -> int:
    """Return the number of consecutive portable steps from step 0."""
    return next((place for place, step in enumerate(leg.steps) if step.step != place), len(leg.steps))


def portable(pair: Pair) -> Mismatch | None:
    """Return the first module or parameter with different portable bits."""
    legs = portable_legs(pair)
    if legs is None or device(pair) is not None:
        return None
    difference = next(leg_parts(*legs), None)
    if difference is None or excused(pair) is not None:
        return None
    return _mismatch(*difference, legs)


def _mismatch(stage: Stage, step: int, name: str, legs: tuple[PortableEvidence, PortableEvidence]) -> Mismatch:
    """Return the mismatch for a tensor with different portable bits."""
    code, text = _WHAT[stage]
    finding = Finding(
        check="probe.portable", outcome="drift", metric=fact("portable.bits", stage=stage, step=step), observed=name,
        limit="equal", detail=fact("portable.no-rounding"),
    )  # fmt: skip
    why = text if stage == "loss" else fact("portable.part", name=name, what=text)
    evidence = (fact("portable.equal-up-to", stage=stage, step=step),)
    rung: str = stage
    if name.startswith(CLIPPED):
        why, rung, name = fact("curve-legs.clipping"), "clipped", "clipping"
    # Clipping comes between the gradient's digest and the weight's: in records of before, the update alone is not shown
    # to differ.
    shown = stage != "optimizer" or all(side.clipped for leg in legs for side in leg.steps)
    suspicion = Suspicion(code, why, evidence, (name,), shown=shown)
    return Mismatch(
        rung, Divergence(stage=stage, step=step, at=name), (finding,), (suspicion,), basis="portable", is_certain=True
    )


def draw_findings(pair: Pair) -> list[Finding]:
    """Return a finding if the candidate failed the round's randomized check.

    Equal portable runs imply equal answers of an honest training; unequal ones are findings of their own.
    """
    sides = [side.record for side in (pair.reference, pair.candidate)]
    if pair.probes is None or not sides[0].round_id or any(side.experiment is not None for side in sides):
        return []
    asked, given = (probe.portable.drawn if probe.portable else None for probe in pair.probes)
    legs = portable_legs(pair)
    is_explained = legs is not None and (legs[1].unportable or next(leg_parts(*legs), None) is not None)
    if sides[0].round_id != sides[1].round_id or asked is None or asked == given or is_explained:
        return []
    finding = Finding(
        check="record.draw", outcome="invalid", metric=fact("portable.draw"), observed=given, limit=asked,
        detail=fact("portable.answered"),
    )  # fmt: skip
    missing = finding.replace(outcome="inconclusive", detail=fact("portable.unanswered"))
    return [missing if given is None else finding]


def reordered(pair: Pair) -> tuple[Statement, float] | None:
    """Return a difference's tensor and size, if the summation order explains it.

    Later stages follow from the first different stage: the native rungs judge their formulas.
    """
    legs = portable_legs(pair)
    found = next(leg_parts(*legs), None) if legs is not None else None
    if legs is None or found is None:
        return None
    stage, step, name = found
    ours, theirs = (next(each for each in leg.steps if each.step == step) for leg in legs)
    # Sketches show clipped gradients in the update alone.
    stage = "optimizer" if name.startswith(CLIPPED) else stage
    found_sizes = sizes(ours, theirs, stage)
    if stage == "forward":  # not a module that one side does not call
        called = dict(theirs.outputs)
        name = next((key for key, digest in ours.outputs if called.get(key, digest) != digest), name)
    limit = _limit(legs[0], ours, stage)
    if not found_sizes or not all(size <= limit for size in found_sizes):  # a NaN is no small difference
        return None
    return fact("portable.place", stage=stage, step=step, name=name), max(found_sizes)


def excused(pair: Pair) -> tuple[Statement, float] | None:
    """Return a tolerated difference in operation order: its tensor and size.

    A difference of one slice is as large as a small fault's: only different software excuses it.
    """
    legs = portable_legs(pair)
    found = next(leg_parts(*legs), None) if legs is not None else None
    if legs is None or found is None:
        return None
    stage, step, _ = found
    ours = next(each for each in legs[0].steps if each.step == step)
    is_small = _limit(legs[0], ours, stage) < limits.ORDER_OF_ONE_SLICE
    return reordered(pair) if is_small or other_software(pair) else None


def other_software(pair: Pair) -> bool:
    """Return whether a package that decides operation order differs.

    The same code computes in the same order on every device: without a different version, no difference is excused.
    """
    left, right = (side.record.fingerprint.packages for side in (pair.reference, pair.candidate))
    return any(left.get(name) != right.get(name) for name in SOFTWARE)


def _limit(leg: PortableEvidence, step: PortableStep, stage: Stage) -> float:
    """Return the largest error that a different operation order can cause."""
    if stage == "optimizer":
        return limits.ORDER_OF_UPDATE
    is_exact = leg.slices > 1 and step.outputs and step.step < _first_steps(leg)
    return limits.EXACT if is_exact else limits.ORDER_OF_ONE_SLICE


def sizes(left: PortableStep, right: PortableStep, stage: Stage) -> list[float]:
    """Return the relative differences of a stage's sketched tensors."""
    ours, theirs = ({key: value for key, value in side.sketches if "#" not in key} for side in (left, right))
    outputs = dict(left.outputs), dict(right.outputs)
    idle = {f"forward {name}" for name in outputs[0].keys() ^ outputs[1].keys()}  # the module around each is compared
    ours, theirs = ({key: value for key, value in side.items() if key not in idle} for side in (ours, theirs))
    if ours.keys() != theirs.keys() or not ours or left.loss is None or right.loss is None:
        return []
    kinds = {"forward": ("forward", "gradient"), "optimizer": ("weight",)}.get(stage, ("gradient",))
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


def portable_findings(pair: Pair) -> list[Finding]:
    """Return the proof of equal formulas, or the operation that prevents one."""
    findings = []
    steps = proven_steps(pair)
    if steps:
        metric = fact("portable.equal-steps")
        findings.append(Finding(check="probe.portable", outcome="pass", metric=metric, observed=steps, limit=steps))
    for side, leg in zip(("reference", "candidate"), portable_legs(pair) or (), strict=False):
        if leg.unportable:
            detail = fact("portable.no-form", side=side, operation=leg.unportable)
            metric = fact("portable.operations-without-form")
            findings.append(
                Finding(
                    check="probe.portable",
                    outcome="inconclusive",
                    metric=metric,
                    observed=leg.unportable,
                    detail=detail,
                )
            )
    return findings
