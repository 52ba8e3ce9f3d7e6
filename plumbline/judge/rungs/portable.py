"""The portable legs: equal bits prove equal formulas, different bits are a real difference.

Portable arithmetic has the same bits on every CPU and GPU. No tolerance is used here.
"""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.schema.evidence import PortableEvidence, PortableStep
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Stage

__all__ = ["device", "portable", "portable_findings", "portable_legs", "proven_steps"]

Digests = tuple[tuple[str, str | None], ...]

_WHAT: dict[Stage, tuple[CauseCode, str]] = {
    "forward": ("operator", "computes a different result"),
    "loss": ("loss", "the loss is a different function of equal logits"),
    "gradient": ("gradient", "gets a different gradient from an equal loss"),
    "optimizer": ("optimizer", "is updated differently from an equal gradient"),
}


def portable_legs(pair: Pair) -> tuple[PortableEvidence, PortableEvidence] | None:
    """Return both portable legs, or `None` if a run has none."""
    if pair.probes is None:
        return None
    left, right = (probe.portable for probe in pair.probes)
    return (left, right) if left is not None and right is not None else None


def device(pair: Pair) -> Mismatch | None:
    """Return a mismatch if a device's portable leg differs from its own repetition."""
    legs = portable_legs(pair)
    if legs is None or all(leg.repeated for leg in legs):
        return None
    side = " and ".join(name for name, leg in zip(("reference", "candidate"), legs, strict=True) if not leg.repeated)
    finding = Finding(
        check="probe.device", outcome="drift", metric="repetitions of the portable leg with equal bits", observed=0,
        limit=1, detail=f"on the device of the {side}",
    )  # fmt: skip
    why = f"the {side}'s device gives different bits for the same operations on the same numbers"
    evidence = ("portable arithmetic has one result on every device",)
    at = Divergence(stage="forward", step=0, at="device")
    return Mismatch("forward", at, (finding,), (Suspicion("device", why, evidence, shown=True),), independent=True)


def proven_steps(pair: Pair) -> int:
    """Return over how many steps the portable legs prove equal formulas."""
    legs = portable_legs(pair)
    if legs is None or device(pair) is not None or any(leg.unportable for leg in legs):
        return 0
    same = len(legs[0].steps) == len(legs[1].steps) and next(_parts(*legs), None) is None
    return len(legs[0].steps) if same else 0


def portable(pair: Pair) -> Mismatch | None:
    """Return the first module or parameter whose portable bits differ."""
    legs = portable_legs(pair)
    if legs is None or device(pair) is not None:
        return None
    difference = next(_parts(*legs), None)
    if difference is None:
        return None
    stage, step, name = difference
    code, text = _WHAT[stage]
    finding = Finding(
        check="probe.portable", outcome="drift", metric=f"portable bits of {stage} at step {step}", observed=name,
        limit="equal", detail="portable bits do not depend on kernels, threads or devices: no rounding explains this",
    )  # fmt: skip
    why = text if stage == "loss" else f"{name} {text}"
    evidence = (f"portable bits are equal up to {stage} of step {step}",)
    suspicion = Suspicion(code, why, evidence, (name,), shown=True)
    rung = "forward" if stage == "forward" else stage
    return Mismatch(rung, Divergence(stage=stage, step=step, at=name), (finding,), (suspicion,))


def portable_findings(pair: Pair) -> list[Finding]:
    """Return the proof of equal formulas, or the operation that prevents one."""
    findings = []
    steps = proven_steps(pair)
    if steps:
        metric = "steps whose portable bits are equal"
        findings.append(Finding(check="probe.portable", outcome="pass", metric=metric, observed=steps, limit=steps))
    for side, leg in zip(("reference", "candidate"), portable_legs(pair) or (), strict=False):
        if leg.unportable:
            detail = (
                f"the {side} calls {leg.unportable}, which has no portable form (hint: set probe.portable_steps = 0)"
            )
            metric = "operations without a portable form"
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


def _parts(left: PortableEvidence, right: PortableEvidence) -> Iterator[tuple[Stage, int, str]]:
    """Yield (stage, step, name) of each difference, in the order of computation."""
    for ours, theirs in zip(left.steps, right.steps, strict=False):
        yield from (("forward", ours.step, name) for name in _differing(ours.outputs, theirs.outputs))
        if ours.loss is None or ours.loss != theirs.loss:
            yield _loss(ours)
        # The backward pass starts at the model's end.
        gradients = [*_differing(ours.gradients, theirs.gradients)]
        yield from (("gradient", ours.step, name) for name in reversed(gradients))
        yield from (("optimizer", ours.step, name) for name in _differing(ours.weights, theirs.weights))


def _loss(step: PortableStep) -> tuple[Stage, int, str]:
    """Return the place of a different loss: the loss itself, or the model."""
    return ("loss", step.step, "loss") if step.outputs else ("forward", step.step, "logits")


def _differing(left: Digests, right: Digests) -> Iterator[str]:
    """Yield the names whose digests differ, are missing, or are not finite."""
    theirs = dict(right)
    yield from (name for name, digest in left if digest is None or theirs.get(name) != digest)
    ours = dict(left)
    yield from (name for name, _ in right if name not in ours)
