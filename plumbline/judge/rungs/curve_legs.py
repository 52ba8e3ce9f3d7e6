"""The portable legs of two learning curves: equal bits prove the curve's formulas on any machine, others name the part.

Each leg starts from the same weights and moments on both sides, so that a place does not inherit an earlier
difference. Where torch or transformers differ in version, a different order of the same operations changes bits too:
there, and only there, a difference within rounding proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import code_of_fields
from plumbline.judge.rungs.portable import other_software, sizes
from plumbline.schema.evidence import CurveLeg, LearnEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import CLIPPED, DROPOUT_INPUT, curve_leg_parts, other_formats
from plumbline.schema.task import draws_labels
from plumbline.schema.tolerance import floor_of, relative
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Note, Stage

_CODES: dict[Stage, CauseCode] = {
    "forward": "operator", "loss": "loss", "gradient": "gradient", "optimizer": "optimizer", "evaluation": "evaluation",
}  # fmt: skip
_RESTORED: dict[str, CauseCode] = {
    "weights": "optimizer", "moments": "optimizer", "schedule": "schedule", "generators": "rng",
}  # fmt: skip
_COUNTED = ("inputs", "labels", "evaluation")
"""Parts of an evaluation that no module computes: what it reads, and how it counts."""
_INCONSISTENT: dict[str, CauseCode] = {"masks": "rng"}


def _curves(pair: Pair) -> tuple[LearnEvidence, LearnEvidence] | None:
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    return (left, right) if left is not None and right is not None else None


def _common(pair: Pair) -> Iterator[tuple[CurveLeg, CurveLeg]]:
    """Yield the legs that both curves ran before the same step."""
    curves = _curves(pair)
    if curves is None or curves[0].legs is None or curves[1].legs is None:
        return
    theirs = {leg.at: leg for leg in curves[1].legs.legs}
    yield from ((leg, theirs[leg.at]) for leg in curves[0].legs.legs if leg.at in theirs)


def curve_legs(pair: Pair) -> Mismatch | None:
    """Return the first part of a leg that differs: between the processes of one side, or between the sides."""
    if (differing := _rank(pair)) is not None:
        return differing
    for ours, theirs in _common(pair):
        place = next(curve_leg_parts(ours, theirs), None)
        if place is not None and not _is_order(pair, ours, theirs, place):
            stage, name = place
            types = other_formats(ours, theirs, stage, name)
            fields = tuple(other for part, other in curve_leg_parts(ours, theirs) if part == "batch")
            code, why = _of_batch(pair, fields) if fields else _named(stage, name, types)
            evidence = (fact("curve-legs.equal-up-to", stage=stage, step=ours.at),)
            return _mismatch(Suspicion(code, why, evidence, (_place(name),)), ours.at, stage)
    return None


def _of_batch(pair: Pair, fields: tuple[str, ...]) -> tuple[CauseCode, Statement]:
    """Return cause and reason of a leg that was given a different batch."""
    code = code_of_fields(fields, masked=draws_labels(pair.reference.record.spec.task))
    return code, fact("curve-legs.batch", fields=", ".join(fields))


def _named(stage: Stage, name: str, formats: tuple[str, str] | None) -> tuple[CauseCode, Statement]:
    """Return cause and reason of a part that differs first."""
    if formats is not None:
        return "precision", fact("forward.precision", name=name, format=formats[1], reference=formats[0])
    if stage == "forward" and name.endswith(DROPOUT_INPUT):
        return "operator", fact("curve-legs.forward", name=_place(name))
    if stage == "forward" and "drop" in name.rpartition(".")[2]:
        return "rng", fact("curve-legs.mask", name=name)
    if name.startswith(CLIPPED):
        return "gradient", fact("curve-legs.clipping")
    if stage == "evaluation" and name == "labels":
        return "data.labels", fact("curve-legs.evaluated-labels")
    return _CODES[stage], fact(f"curve-legs.{stage}", name=name)


def _place(name: str) -> str:
    """Return the module that computes a part: a dropout's input belongs to the module around it."""
    return name.removesuffix(DROPOUT_INPUT).rpartition(".")[0] if name.endswith(DROPOUT_INPUT) else name


def _mismatch(suspicion: Suspicion, step: int, stage: Stage) -> Mismatch:
    finding = Finding(
        check="learn.portable", outcome="drift", metric=fact("curve-legs.bits", stage=stage, step=step),
        observed=suspicion.names[0], limit="equal", detail=fact("portable.no-rounding"),
    )  # fmt: skip
    at = Divergence(stage="learn", step=step, at=suspicion.names[0])
    return Mismatch("learn", at, (finding,), (suspicion,), basis="given")


def _rank(pair: Pair) -> Mismatch | None:
    """Return the mismatch of a process whose legs differ from those of the other processes of its run."""
    curves = _curves(pair)
    for side, curve in zip(("reference", "candidate"), curves or (), strict=False):
        for found in curve.legs.ranks[:1] if curve.legs is not None else ():
            stage: Stage = found.stage if found.stage in (*_CODES, "batch") else "forward"
            is_fed = stage == "batch"
            code, part = _of_batch(pair, (found.name,)) if is_fed else _named(stage, found.name, found.formats)
            why = fact("curve-legs.rank", rank=found.rank, side=side, part=part)
            return _mismatch(Suspicion(code, why, (), (_place(found.name),)), found.at, stage)
    return None


def _is_order(pair: Pair, ours: CurveLeg, theirs: CurveLeg, place: tuple[Stage, str]) -> bool:
    """Return whether different versions explain the difference by the order of operations alone.

    An evaluation may differ first: it has the biases of the step's update, where shipped weights have zeros.
    """
    stage, name = place
    if not other_software(pair) or (stage == "evaluation" and name in _COUNTED):
        return False
    found, spec = sizes(ours.training, theirs.training, stage), pair.reference.record.spec.learn
    if stage == "evaluation":
        found = [relative(ours.evaluation.loss, theirs.evaluation.loss)]
    kind = {"forward": "forward", "optimizer": "weight", "evaluation": "loss"}.get(stage, "gradient")
    return bool(found) and all(size <= floor_of(kind, spec.precision if spec else "fp32") for size in found)


def _proven(pair: Pair) -> int:
    """Return the number of places at which both legs have equal bits."""
    return sum(next(curve_leg_parts(ours, theirs), None) is None for ours, theirs in _common(pair))


def leg_findings(pair: Pair) -> list[Finding]:
    """Return the proof of equal formulas in the curve."""
    num, places = _proven(pair), len(list(_common(pair)))
    if not num:
        return []
    metric = fact("curve-legs.equal")
    return [Finding(check="learn.portable", outcome="pass", metric=metric, observed=num, limit=places)]


def leg_notes(pair: Pair) -> list[Note]:
    """Return what the legs prove about the curve, and where they ended without a proof."""
    curves, notes = _curves(pair), []
    if num := _proven(pair):
        spec = pair.reference.record.spec.learn
        precision = spec.precision if spec else ""
        notes.append(Note(code="portable", text=fact("curve-legs.proven", num=num, precision=precision)))
    for side, curve in zip(("reference", "candidate"), curves or (), strict=False):
        why = (curve.legs.unportable or curve.legs.lost) if curve.legs is not None else ""
        if why:
            notes.append(Note(text=fact("curve-legs.ended", side=side, why=why)))
    return notes


def own_state(pair: Pair, *, parted: bool = False) -> Mismatch | None:
    """Return the mismatch of a state that its own run shows to be wrong: behind a resume, or between two steps.

    `parted`: of processes whose weights differ, which is the consequence of a part that a leg may name.
    """
    for side, curve in zip(("reference", "candidate"), _curves(pair) or (), strict=False):
        for part in curve.resumed_wrongly[: 0 if parted else 1]:
            step = curve.resumed_at[-1] if curve.resumed_at else 0
            why = fact("curve-legs.resumed", side=side, part=part, step=step)
            return _of_state("learn.resume", _RESTORED.get(part, "unattributed"), why, step, part)
        wrong = [found for found in curve.inconsistent if (found.event == "processes") is parted]
        for found in sorted(wrong, key=lambda found: (found.step, found.rank))[:1]:
            is_evaluation = (found.part, found.event) == ("weights", "evaluation")
            code = "evaluation" if is_evaluation else _INCONSISTENT.get(found.part, "optimizer")
            code = "weights.init" if parted and found.step == 0 else code
            why = fact(f"curve-legs.state-{found.event}", side=side, part=found.part, rank=found.rank, step=found.step)
            return _of_state("learn.state", code, why, found.step, found.part)
    return None


def _of_state(check: str, code: CauseCode, why: Statement, step: int, part: str) -> Mismatch:
    finding = Finding(check=check, outcome="drift", metric=fact("curve-legs.own-state"), observed=part)
    at = Divergence(stage="learn", step=step, at=part)
    return Mismatch("learn", at, (finding,), (Suspicion(code, why, names=(part,), shown=True),), basis="given")


_GUESSES = ("learning.parts-after-resume",)
"""Reasons that rest on the place alone, and give way to a part that differs in itself."""


def with_legs(apart: Mismatch | None, formula: Mismatch | None) -> Mismatch | None:
    """Return a curve's mismatch, named by its legs where its logs do not name it."""
    if apart is None or formula is None:
        return apart or formula
    suspicion = apart.suspicions[0]
    guessed = getattr(suspicion.why, "code", "") in _GUESSES
    if suspicion.code == "unattributed" or guessed:
        return replace(formula, findings=(*apart.findings, *formula.findings))
    return replace(apart, findings=(*apart.findings, *formula.findings))
