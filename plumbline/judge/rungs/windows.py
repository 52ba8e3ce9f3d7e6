"""Compare training steps that both sides repeated in portable arithmetic ("windows").

Each window starts from the same weights and moments on both sides, so that a place does not inherit an earlier
difference. Where torch or transformers differ in version, a different order of the same operations changes bits too:
there, and only there, a difference within rounding proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import code_of_fields
from plumbline.judge.rungs.portable import other_software, sizes
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import LearnEvidence, PortableWindow, PortableWindows
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import CLIPPED, DROPOUT_INPUT, DROPOUT_MASK, other_formats, window_parts
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


Part = Literal["speed", "learn"]


def _curves(pair: Pair) -> tuple[LearnEvidence, LearnEvidence] | None:
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    return (left, right) if left is not None and right is not None else None


def windows_of(side: LoadedRecord, part: Part) -> PortableWindows | None:
    """Return a training part's portable repetitions, if the part trained."""
    found = side.record.evidence.speed if part == "speed" else side.record.evidence.learn
    return found.legs if found is not None else None


def _sides(pair: Pair, part: Part) -> Iterator[tuple[str, PortableWindows]]:
    for name, side in (("reference", pair.reference), ("candidate", pair.candidate)):
        if (found := windows_of(side, part)) is not None:
            yield name, found


def _common(pair: Pair, part: Part) -> Iterator[tuple[PortableWindow, PortableWindow]]:
    """Yield the portable repetitions of the same step on both sides."""
    sides = [found for _, found in _sides(pair, part)]
    if len(sides) == 2:
        theirs = {window.at: window for window in sides[1].legs}
        yield from ((window, theirs[window.at]) for window in sides[0].legs if window.at in theirs)


def window_mismatch(pair: Pair, part: Part) -> Mismatch | None:
    """Return the first difference in repeated steps, between processes or sides."""
    if (differing := _rank(pair, part)) is not None:
        return differing
    for ours, theirs in _common(pair, part):
        place = next(window_parts(ours, theirs), None)
        if place is not None and not _is_order(pair, part, ours, theirs, place):
            stage, name = place
            types = other_formats(ours, theirs, stage, name)
            fields = tuple(other for known, other in window_parts(ours, theirs) if known == "batch")
            code, why = _of_batch(pair, fields) if fields else _named(stage, name, types)
            if name.endswith(DROPOUT_INPUT) and any(name not in dict(leg.training.outputs) for leg in (ours, theirs)):
                name = name.removesuffix(DROPOUT_INPUT)  # only one side calls it
                code, why = "rng", fact("curve-legs.mask", name=name)
            name = "clipping" if name.startswith(CLIPPED) else name
            evidence = (fact("curve-legs.equal-up-to", stage=stage, step=ours.at),)
            return _mismatch(part, Suspicion(code, why, evidence, (_place(name),), shown=True), ours.at, stage)
    return None


def _of_batch(pair: Pair, fields: tuple[str, ...]) -> tuple[CauseCode, Statement]:
    """Return cause and reason if a repeated step read a different batch."""
    code = code_of_fields(fields, masked=draws_labels(pair.reference.record.spec.task))
    return code, fact("curve-legs.batch", fields=", ".join(fields))


def _named(stage: Stage, name: str, formats: tuple[str, str] | None) -> tuple[CauseCode, Statement]:
    """Return cause and reason of a repeated step's first different tensor."""
    if formats is not None:
        return "precision", fact("forward.precision", name=name, format=formats[1], reference=formats[0])
    if stage == "forward" and name.endswith(DROPOUT_INPUT):
        return "operator", fact("curve-legs.forward", name=_place(name))
    if stage == "forward" and name.endswith(DROPOUT_MASK):
        return "rng", fact("curve-legs.mask", name=_place(name))
    if name.startswith(CLIPPED):
        return "gradient", fact("curve-legs.clipping")
    if stage == "evaluation" and name == "labels":
        return "data.labels", fact("curve-legs.evaluated-labels")
    return _CODES[stage], fact(f"curve-legs.{stage}", name=name)


def _place(name: str) -> str:
    """Return the module that computes a tensor."""
    return name.rpartition(".")[0] if name.endswith(DROPOUT_INPUT) else name.removesuffix(DROPOUT_MASK)


def _mismatch(part: Part, suspicion: Suspicion, step: int, stage: Stage) -> Mismatch:
    finding = Finding(
        check=f"{part}.portable", outcome="drift", metric=fact("curve-legs.bits", stage=stage, step=step, part=part),
        observed=suspicion.names[0], limit="equal", detail=fact("portable.no-rounding"),
    )  # fmt: skip
    at = Divergence(stage="learn" if part == "learn" else stage, step=step, at=suspicion.names[0])
    return Mismatch(part, at, (finding,), (suspicion,), basis="given")


def _rank(pair: Pair, part: Part) -> Mismatch | None:
    """Return a mismatch if one process's repeated steps differ from the others'."""
    for side, windows in _sides(pair, part):
        for found in windows.ranks[:1]:
            stage: Stage = found.stage if found.stage in (*_CODES, "batch") else "forward"
            is_fed = stage == "batch"
            code, reason = _of_batch(pair, (found.name,)) if is_fed else _named(stage, found.name, found.formats)
            why = fact("curve-legs.rank", rank=found.rank, side=side, part=reason)
            return _mismatch(part, Suspicion(code, why, (), (_place(found.name),), shown=True), found.at, stage)
    return None


def _is_order(pair: Pair, part: Part, ours: PortableWindow, theirs: PortableWindow, place: tuple[Stage, str]) -> bool:
    """Return whether package versions explain a different order of operations.

    An evaluation may differ first: it runs with biases that the step updated, which initially are zero.
    """
    stage, name = place
    if not other_software(pair) or stage == "batch" or (stage == "evaluation" and name in _COUNTED):
        return False
    spec = pair.reference.record.spec
    setting, found = (spec.speed if part == "speed" else spec.learn), sizes(ours.training, theirs.training, stage)
    if stage == "evaluation" and ours.evaluation is not None and theirs.evaluation is not None:
        found = [relative(ours.evaluation.loss, theirs.evaluation.loss)]
    kind = {"forward": "forward", "optimizer": "weight", "evaluation": "loss"}.get(stage, "gradient")
    return bool(found) and all(size <= floor_of(kind, setting.precision if setting else "fp32") for size in found)


def _proven(pair: Pair, part: Part) -> int:
    """Return the number of repeated steps with equal bits."""
    return sum(next(window_parts(ours, theirs), None) is None for ours, theirs in _common(pair, part))


def lost_windows(pair: Pair, part: Part) -> str:
    """Return why a training part has no comparable portable repetitions, or "".

    An operation without a portable form usually ends the windows of both sides; if of one side only, that is a reason.
    """
    found = [windows for _, windows in _sides(pair, part)]
    why = next((windows.lost for windows in found if windows.lost), "")
    if not why and not all(windows.unportable for windows in found) and not other_software(pair):
        why = next((windows.unportable for windows in found if windows.unportable), "")
    return why


def window_findings(pair: Pair, part: Part) -> list[Finding]:
    """Return the proof that both sides compute equal formulas."""
    num, places = _proven(pair, part), len(list(_common(pair, part)))
    if not num:
        return []
    metric = fact("curve-legs.equal", part=part)
    return [Finding(check=f"{part}.portable", outcome="pass", metric=metric, observed=num, limit=places)]


def window_notes(pair: Pair, part: Part) -> list[Note]:
    """Describe what portable repetitions prove about a training part."""
    spec, notes = pair.reference.record.spec, list[Note]()
    setting = spec.speed if part == "speed" else spec.learn
    if num := _proven(pair, part):
        precision = setting.precision if setting else ""
        text = fact("curve-legs.proven", num=num, precision=precision, part=part)
        notes.append(Note(code="portable", text=text))
    for side, windows in _sides(pair, part):
        if why := windows.unportable or windows.lost:
            notes.append(Note(text=fact("curve-legs.ended", side=side, why=why, part=part)))
    return notes


def own_state(pair: Pair, *, parted: bool = False) -> Mismatch | None:
    """Return a mismatch if a run's weights changed outside its steps.

    `parted`: of processes whose weights differ, which is the consequence of a part that a window may name.
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
