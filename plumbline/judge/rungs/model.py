"""Rung of the model: structure and initial weights."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion, differs, of_log
from plumbline.judge.pair import Pair, first_apart
from plumbline.schema.evidence import ModelEvidence, Parameter
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.spec import PartName
from plumbline.schema.verdict import Divergence

_NAMED = 4


def architecture(pair: Pair) -> Mismatch | None:
    """Return a mismatch of parameter names, shapes or weight tying."""
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None:
        return None
    lines = _structure(left, right)
    if not lines:
        return None
    names, named = tuple(name for name, _ in lines), tuple(line for _, line in lines[:_NAMED])
    modules = tuple(line for _, line in other_modules(left, right)[:_NAMED])
    why, metric = fact("model.architecture"), fact("model.different-parameters")
    suspicion = Suspicion("model.architecture", why, (*named, *modules), names, shown=True)
    at, check = Divergence(stage="architecture", step=0, at=names[0]), "probe.architecture"
    return differs(at, check, metric, suspicion, observed=len(lines), limit=0, detail=joined(named))


def restructured(pair: Pair) -> frozenset[str]:
    """Return the parameters that differ in name, shape or weight tying.

    Parameters tied on one side only have one value there: each of them may be the one that lost its own.
    """
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None:
        return frozenset()
    names = {name for name, _ in _structure(left, right)}
    partners = {p.tied_to for side in (left, right) for p in side.parameters if p.tied_to and p.name in names}
    return frozenset(names | partners)


def _structure(left: ModelEvidence, right: ModelEvidence) -> list[tuple[str, Statement]]:
    ours, theirs = ({p.name: p for p in side.parameters} for side in (left, right))
    lines: list[tuple[str, Statement]] = [
        (name, fact("model.missing", name=name)) for name in ours if name not in theirs
    ]
    lines += [(name, fact("model.additional", name=name)) for name in theirs if name not in ours]
    for name, reference in ours.items():
        candidate = theirs.get(name)
        if candidate is not None and candidate.shape != reference.shape:
            shape, known = list(candidate.shape), list(reference.shape)
            lines.append((name, fact("model.shape", name=name, shape=shape, reference=known)))
        elif candidate is not None and candidate.tied_to != reference.tied_to:
            tied_to, other = (each.tied_to or "nothing" for each in (candidate, reference))
            lines.append((name, fact("model.tie", name=name, tied_to=tied_to, reference=other)))
    return lines


def other_modules(left: ModelEvidence, right: ModelEvidence) -> list[tuple[str, Statement]]:
    """Return (module, difference) of module names, classes and settings; never a verdict."""
    ours, theirs = dict(left.modules), dict(right.modules)
    lines: list[tuple[str, Statement]] = [
        (name, f"{name}: {module} → {theirs[name]}")
        for name, module in ours.items()
        if theirs.get(name, module) != module
    ]
    lines += [(name, fact("model.missing-module", name=name)) for name in ours if name not in theirs]
    lines += [(name, fact("model.additional-module", name=name)) for name in theirs if name not in ours]
    return lines


def weights(pair: Pair) -> Mismatch | None:
    """Return a mismatch of the initial values of equally shaped parameters."""
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None or left.weights_sha256 == right.weights_sha256:
        return None
    theirs = {p.name: p for p in right.parameters}
    other = restructured(pair)
    pairs = [
        (parameter, theirs[parameter.name])
        for parameter in left.parameters
        if parameter.name in theirs and parameter.name not in other
    ]
    retyped = [(reference, other) for reference, other in pairs if reference.dtype != other.dtype]
    differing = retyped or [(reference, other) for reference, other in pairs if reference.sha256 != other.sha256]
    if not differing:
        return None
    first = differing[0][1]
    at, metric = Divergence(stage="weights", step=0, at=first.name), fact("model.different-values")
    suspicion = _suspicion(differing, len(pairs), retyped=bool(retyped))
    detail = fact("model.first", name=first.name)
    return differs(at, "probe.weights", metric, suspicion, observed=len(differing), limit=0, detail=detail)


def _suspicion(differing: list[tuple[Parameter, Parameter]], count: int, *, retyped: bool) -> Suspicion:
    reference, candidate = differing[0]
    names = tuple(right.name for _, right in differing)
    if retyped:
        why = fact("model.format", format=candidate.dtype, reference=reference.dtype)
        return Suspicion("precision", why, (fact("model.num-parameters", num=len(differing), total=count),), names)
    why = fact("model.initial-values", num=len(differing), total=count)
    return Suspicion("weights.init", why, (fact("model.first", name=candidate.name),), names)


def logged_start(pair: Pair, part: PartName) -> Mismatch | None:
    """Return the mismatch of the weights before the first step of a part, by its log."""
    logs = pair.logs(part)
    if logs is None or first_apart(*(dict(log.weights) for log in logs)) != 0:
        return None
    at = Divergence(stage="weights", step=0, at="weights")
    return of_log(part, at, "weights.init", fact("log.start", part=part), shown=True)
