"""The portable legs: equal bits prove equal formulas, other bits are a real difference, whatever its size.

Portable arithmetic has the same bits on every CPU and GPU. No tolerance takes part here.
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
    "forward": ("operator", "computes something else"),
    "loss": ("loss", "the loss is another function of equal logits"),
    "gradient": ("gradient", "gets another gradient from an equal loss"),
    "optimizer": ("optimizer", "is updated in another way from an equal gradient"),
}


def portable_legs(pair: Pair) -> tuple[PortableEvidence, PortableEvidence] | None:
    """Return both portable legs, where both runs have one."""
    if pair.probes is None:
        return None
    left, right = (probe.portable for probe in pair.probes)
    return (left, right) if left is not None and right is not None else None


def device(pair: Pair) -> Mismatch | None:
    """Find a device whose portable leg disagrees with its own repetition: it computes wrongly."""
    legs = portable_legs(pair)
    if legs is None or all(leg.repeated for leg in legs):
        return None
    who = " and ".join(name for name, leg in zip(("reference", "candidate"), legs, strict=True) if not leg.repeated)
    finding = Finding(
        check="probe.device", outcome="drift", metric="repetitions of the portable leg with equal bits", observed=0,
        limit=1, detail=f"on the device of the {who}",
    )  # fmt: skip
    why = f"the {who}'s device gives other bits for the same operations on the same numbers"
    evidence = ("portable arithmetic has one result on every device",)
    at = Divergence(stage="forward", step=0, at="device")
    return Mismatch("forward", at, (finding,), (Suspicion("device", why, evidence, shown=True),), independent=True)


def proven_steps(pair: Pair) -> int:
    """Return over how many steps the portable legs prove that data, weights, formulas and optimizer are the same."""
    legs = portable_legs(pair)
    if legs is None or device(pair) is not None or any(leg.unportable for leg in legs):
        return 0
    same = len(legs[0].steps) == len(legs[1].steps) and next(_parts(*legs), None) is None
    return len(legs[0].steps) if same else 0


def portable(pair: Pair) -> Mismatch | None:
    """Find the first module or parameter whose portable bits part; `None` where a leg is missing or wrong."""
    legs = portable_legs(pair)
    if legs is None or device(pair) is not None:
        return None
    found = next(_parts(*legs), None)
    if found is None:
        return None
    stage, step, name = found
    code, what = _WHAT[stage]
    finding = Finding(
        check="probe.portable", outcome="drift", metric=f"portable bits of {stage} at step {step}", observed=name,
        limit="equal", detail="portable bits do not depend on kernels, threads or devices: no rounding explains this",
    )  # fmt: skip
    why = what if stage == "loss" else f"{name} {what}"
    evidence = (f"portable bits are equal up to {stage} of step {step}",)
    suspicion = Suspicion(code, why, evidence, (name,), shown=True)
    rung = "forward" if stage == "forward" else stage
    return Mismatch(rung, Divergence(stage=stage, step=step, at=name), (finding,), (suspicion,))


def portable_findings(pair: Pair) -> list[Finding]:
    """Return what the portable legs say where they show no difference: a proof, or the operation that prevents one."""
    found = []
    steps = proven_steps(pair)
    if steps:
        metric = "steps whose portable bits are equal"
        found.append(Finding(check="probe.portable", outcome="pass", metric=metric, observed=steps, limit=steps))
    for who, leg in zip(("reference", "candidate"), portable_legs(pair) or (), strict=False):
        if leg.unportable:
            detail = (
                f"the {who} calls {leg.unportable}, which has no portable form (hint: set probe.portable_steps = 0)"
            )
            metric = "operations without a portable form"
            found.append(
                Finding(
                    check="probe.portable",
                    outcome="inconclusive",
                    metric=metric,
                    observed=leg.unportable,
                    detail=detail,
                )
            )
    return found


def _parts(left: PortableEvidence, right: PortableEvidence) -> Iterator[tuple[Stage, int, str]]:
    """Yield (stage, step, name) of what differs, in the order of computation."""
    for ours, theirs in zip(left.steps, right.steps, strict=False):
        yield from (("forward", ours.step, name) for name in _differing(ours.outputs, theirs.outputs))
        if ours.loss is None or ours.loss != theirs.loss:
            yield _loss(ours)
        # The way back starts at the model's end.
        gradients = [*_differing(ours.gradients, theirs.gradients)]
        yield from (("gradient", ours.step, name) for name in reversed(gradients))
        yield from (("optimizer", ours.step, name) for name in _differing(ours.weights, theirs.weights))


def _loss(step: PortableStep) -> tuple[Stage, int, str]:
    """Place a different loss: in the loss where equal outputs were digested, else somewhere in the model."""
    return ("loss", step.step, "loss") if step.outputs else ("forward", step.step, "logits")


def _differing(left: Digests, right: Digests) -> Iterator[str]:
    """Yield the names whose digests differ, are missing, or belong to values that are not finite."""
    theirs = dict(right)
    yield from (name for name, digest in left if digest is None or theirs.get(name) != digest)
    ours = dict(left)
    yield from (name for name, _ in right if name not in ours)
