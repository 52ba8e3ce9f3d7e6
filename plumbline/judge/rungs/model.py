"""Rung 4: the model as it was built, and the weights that it started from."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.schema.evidence import ModelEvidence, Parameter
from plumbline.schema.verdict import Divergence, Finding

__all__ = ["architecture", "other_modules", "restructured", "weights"]

_NAMED = 4


def architecture(pair: Pair) -> Mismatch | None:
    """Other parameters: by name, by shape, or by what they are tied to."""
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None:
        return None
    lines = _structure(left, right)
    if not lines:
        return None
    finding = Finding(
        check="probe.architecture",
        outcome="drift",
        metric="parameters that differ by name, shape or tie",
        observed=len(lines),
        limit=0,
        detail="; ".join(line for _, line in lines[:_NAMED]),
    )
    modules = tuple(line for _, line in other_modules(left, right))
    return Mismatch(
        rung="architecture",
        at=Divergence(stage="architecture", step=0, at=lines[0][0]),
        findings=(finding,),
        suspicions=(
            Suspicion(
                "model.architecture",
                "the model that was built has other parameters",
                (*(line for _, line in lines[:_NAMED]), *modules[:_NAMED]),
                tuple(name for name, _ in lines),
                shown=True,
            ),
        ),
        independent=True,
    )


def restructured(pair: Pair) -> frozenset[str]:
    """The parameters that are not the same thing on both sides; nothing else about them can be compared."""
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    return frozenset(name for name, _ in _structure(left, right)) if left and right else frozenset()


def _structure(left: ModelEvidence, right: ModelEvidence) -> list[tuple[str, str]]:
    ours, theirs = ({p.name: p for p in side.parameters} for side in (left, right))
    lines = [(name, f"{name} is missing") for name in ours if name not in theirs]
    lines += [(name, f"{name} is there in addition") for name in theirs if name not in ours]
    for name, one in ours.items():
        other = theirs.get(name)
        if other is not None and other.shape != one.shape:
            lines.append((name, f"{name} is {list(other.shape)} in place of {list(one.shape)}"))
        elif other is not None and other.tied_to != one.tied_to:
            lines.append((name, f"{name} is tied to {other.tied_to or 'nothing'}, not {one.tied_to or 'nothing'}"))
    return lines


def other_modules(left: ModelEvidence, right: ModelEvidence) -> list[tuple[str, str]]:
    """Modules by another name, class or setting. Evidence for what an operator does; nothing by itself."""
    ours, theirs = dict(left.modules), dict(right.modules)
    lines = [(name, f"{name}: {one} → {theirs[name]}") for name, one in ours.items() if theirs.get(name, one) != one]
    lines += [(name, f"module {name} is missing") for name in ours if name not in theirs]
    lines += [(name, f"module {name} is there in addition") for name in theirs if name not in ours]
    return lines


def weights(pair: Pair) -> Mismatch | None:
    """Other initial values, in parameters of the same names and shapes."""
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None or left.weights_sha256 == right.weights_sha256:
        return None
    theirs = {p.name: p for p in right.parameters}
    other = restructured(pair)
    pairs = [(one, theirs[one.name]) for one in left.parameters if one.name in theirs and one.name not in other]
    retyped = [(one, other) for one, other in pairs if one.dtype != other.dtype]
    differing = retyped or [(one, other) for one, other in pairs if one.sha256 != other.sha256]
    if not differing:
        return None
    first = differing[0][1]
    finding = Finding(
        check="probe.weights",
        outcome="drift",
        metric="parameters whose initial values differ",
        observed=len(differing),
        limit=0,
        detail=f"first {first.name}",
    )
    return Mismatch(
        rung="weights",
        at=Divergence(stage="weights", step=0, at=first.name),
        findings=(finding,),
        suspicions=(_suspicion(differing, len(pairs), retyped=bool(retyped)),),
        independent=True,
    )


def _suspicion(differing: list[tuple[Parameter, Parameter]], count: int, *, retyped: bool) -> Suspicion:
    one, other = differing[0]
    names = tuple(right.name for _, right in differing)
    if retyped:
        why = f"parameters are held in {other.dtype} in place of {one.dtype}"
        return Suspicion("precision", why, (f"{len(differing)} of {count} parameters",), names)
    why = f"{len(differing)} of {count} parameters start from other values"
    return Suspicion("weights.init", why, (f"first {other.name}",), names)
