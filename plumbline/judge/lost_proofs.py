"""Checks and proofs that a candidate lacks beside its reference. Pure.

At equal steps both sides prove the same tensors, by name: what would prove a module wrong must not be missing for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plumbline.judge.gaps import Gap
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.fact import fact
from plumbline.schema.portable_parts import proof_places
from plumbline.schema.production import ProductionEvidence
from plumbline.schema.proof import Proof
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import PARTS, PartName

Tensors = frozenset[tuple[str, str]]
"""(stage, name) of tensors."""


def lost_proofs(reference: RunRecord, candidate: RunRecord) -> Iterator[Gap]:
    """Yield a gap for the checks, and for each part's proofs, that only the reference has."""
    sides = [side.evidence for side in (reference, candidate)]
    checks = [side.production for side in sides]
    is_lost = checks[1] is not None and bool(checks[1].lost)
    has_kernels = [each is not None and bool(each.kernels) for each in checks]
    wanted, held = (_named_checks(each, kernels=has_kernels[1]) for each in checks)
    if sides[1].speed and not is_lost and not wanted <= held:
        yield Gap("production.evidence", "checks", fact("gap.checks"))
    for part in ("probe", "learn") if is_lost else PARTS:
        if all(getattr(side, part) for side in sides):
            kernels = has_kernels if part == "speed" else [False, False]
            yield from _lost_of(part, reference, candidate, kernels)


def _named_checks(checks: ProductionEvidence | None, *, kernels: bool) -> set[str]:
    """Return the names of a record's production checks, without inner modules.

    `kernels`: with those of compiled kernels, which a machine that compiles nothing has none of.
    """
    if checks is None:
        return set()
    names = {name for name, _ in checks.formula if not name.startswith("forward ") or name == "forward logits"}
    return names | {f"{each.stage} {each.name} of kernels" for each in checks.kernels if kernels}


def _lost_of(part: PartName, reference: RunRecord, candidate: RunRecord, kernels: Sequence[bool]) -> Iterator[Gap]:
    """Yield a gap if the candidate has fewer proofs of a part, or one of them lacks a tensor.

    `kernels`: whether each side's kernels are compiled.
    """
    if isinstance(candidate.spec, CapturedSpec):
        return
    known, found = (getattr(side.evidence, part).proofs for side in (reference, candidate))
    # A night may draw a step twice. Beside compiled kernels, a step of the plain modules is proven, too.
    due = len(proof_places(candidate.spec, part, candidate.round_id)) + (part == "speed")
    fewest = min(due, len(known) - (list(kernels) == [True, False]))
    if len(found) < fewest:
        text = fact("gap.proofs", part=part)
        yield Gap("proof.steps", fact("gap.proven-steps"), text, observed=len(found), limit=fewest)
    for proof in found:
        # Modules of compiled kernels are not seen at the same steps.
        given = (
            _tensors(proof) if kernels[0] == kernels[1] else frozenset[tuple[str, str]]().union(*map(_tensors, found))
        )
        if lost := _computable(_wanted(proof, known), candidate) - given:
            stage, name = min(lost)
            text = fact("gap.proof", part=part, stage=stage, name=name, step=proof.step)
            yield Gap("proof.tensors", fact("gap.proven-tensors"), text, observed=len(given), limit=len(given | lost))
            return


def _wanted(proof: Proof, known: Sequence[Proof]) -> Tensors:
    """Return the tensors that the reference proves at a step, or else at each of its steps."""
    listed = [each for each in known if each.tensors <= len(each.errors) and not each.skipped]
    same = [each for each in listed if each.step == proof.step] or listed
    return frozenset.intersection(*map(_tensors, same)) if same and not proof.skipped else frozenset()


def _tensors(proof: Proof) -> Tensors:
    return frozenset((each.stage, each.name) for each in proof.errors if each.stage != "state")


def _computable(wanted: Tensors, candidate: RunRecord) -> Tensors:
    """Return the tensors that the candidate's model has: a different library may have or call other modules."""
    model, probe = candidate.evidence.model, candidate.evidence.probe
    if model is None or probe is None:
        return wanted
    called = {tap.name.partition("#")[0] for tap in probe.taps if tap.stage == "forward"}
    known = called | {each.name for each in model.parameters} | {"model", "loss", "logits"}
    return frozenset(key for key in wanted if key[1].removesuffix(" input") in known)
