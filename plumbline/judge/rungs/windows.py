"""Compare training steps that both sides repeated in fp64 ("windows"), of any part.

fp64 is equal on every CPU and GPU within one limit, `limits.EXACT`: equal numbers prove equal formulas, different ones
a real difference.
"""

from __future__ import annotations

from dataclasses import replace

from plumbline.judge.mismatches import CODES, Basis, Mismatch, Suspicion, differs
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import code_of_fields
from plumbline.schema.evidence import PortableEvidence, PortableWindow
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import (
    DROPOUT_INPUT,
    DROPOUT_MASK,
    common,
    first_steps,
    other_formats,
    window_parts,
)
from plumbline.schema.spec import PartName
from plumbline.schema.stage import Stage
from plumbline.schema.task import draws_labels
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Note


def sides_of(pair: Pair, part: PartName) -> list[tuple[str, PortableEvidence]]:
    """Return the windows of each side that has any, with its role."""
    trained = [(name, getattr(side.record.evidence, part)) for name, side in pair.sides]
    return [(name, each.portable) for name, each in trained if each is not None and each.portable is not None]


def _common_windows(pair: Pair, part: PartName) -> list[tuple[PortableWindow, PortableWindow]]:
    """Return the windows of the same step on both sides."""
    sides = [found for _, found in sides_of(pair, part)]
    return list(common(sides[0], sides[1])) if len(sides) == 2 else []


def _first_apart(pair: Pair, part: PartName) -> tuple[PortableWindow, PortableWindow] | None:
    """Return the first windows that differ."""
    windows = _common_windows(pair, part)
    return next((both for both in windows if next(window_parts(*both), None) is not None), None)


def window_mismatch(pair: Pair, part: PartName) -> Mismatch | None:
    """Return the first difference in a part's windows: of a device, of processes, or of the sides."""
    if (within := side_mismatch(pair, part)) is not None:
        return within
    windows = _first_apart(pair, part)
    if windows is None:
        return None
    places = list(window_parts(*windows))
    stage, name = places[0]
    fields = tuple(name for stage, name in places if stage == "batch")
    code, why = _of_batch(pair, fields) if fields else _named(stage, name, other_formats(*windows, stage, name))
    if name.endswith(DROPOUT_INPUT) and any(name not in dict(window.outputs) for window in windows):
        name = name.removesuffix(DROPOUT_INPUT)  # only one side calls it
        code, why = "rng", fact("windows.mask", name=name)
    equal = fact("windows.equal-up-to", stage=stage, step=windows[0].step)
    evidence = (fact("windows.equal-behind", stage=stage) if _is_behind(part, windows[0].step) else equal,)
    return _mismatch(part, Suspicion(code, why, evidence, (name,), shown=True), windows[0].step, stage)


def side_mismatch(pair: Pair, part: PartName) -> Mismatch | None:
    """Return a mismatch if a device does not repeat its numbers, or a process differs from the others.

    Processes with different batches cannot repeat each other: then only the different batch is reported. If the sides
    differ at an earlier step, the others may be the ones that are right.
    """
    sides = sides_of(pair, part)
    if part == "probe" and (len(sides) < 2 or any(left.batch != right.batch for left, right in pair.common[:1])):
        return None
    if unsteady := [name for name, found in sides if found.repeated is False]:
        return _of_device(" and ".join(unsteady))
    apart = _first_apart(pair, part)
    for side, found in ((side, rank) for side, windows in sides for rank in windows.ranks[:1]):
        if apart is None or found.at <= apart[0].step:
            stage: Stage = found.stage if found.stage in (*CODES, "batch") else "forward"
            is_fed = stage == "batch"
            code, reason = _of_batch(pair, (found.name,)) if is_fed else _named(stage, found.name, found.formats)
            why = fact("windows.rank", rank=found.rank, side=side, part=reason)
            return replace(
                _mismatch(part, Suspicion(code, why, (), (found.name,), shown=True), found.at, stage), basis="given"
            )
    return None


def _of_device(side: str) -> Mismatch:
    suspicion = Suspicion("device", fact("windows.device", side=side), (fact("windows.one-result"),), shown=True)
    at, detail = Divergence(stage="forward", step=0, at="device"), fact("windows.on-device", side=side)
    return differs(at, "probe.device", fact("windows.repetitions"), suspicion, observed=0, limit=1, detail=detail)


def _of_batch(pair: Pair, fields: tuple[str, ...]) -> tuple[CauseCode, Statement]:
    """Return cause and reason if a window read a different batch."""
    code = code_of_fields(fields, masked=draws_labels(pair.reference.record.spec.task))
    return code, fact("windows.batch", fields=", ".join(fields))


def _named(stage: Stage, name: str, formats: tuple[str, str] | None) -> tuple[CauseCode, Statement]:
    """Return cause and reason of a window's first different tensor."""
    if formats is not None:
        return "precision", fact("forward.precision", name=name, format=formats[1], reference=formats[0])
    if stage == "forward" and name.endswith(DROPOUT_MASK):
        return "rng", fact("windows.mask", name=_place(name))
    if stage == "evaluation" and name == "labels":
        return "data.labels", fact("windows.evaluated-labels")
    return CODES[stage], fact(f"windows.{stage}", name=_place(name))


def _place(name: str) -> str:
    """Return the module that computes a tensor."""
    return name.rpartition(".")[0] if name.endswith(DROPOUT_INPUT) else name.removesuffix(DROPOUT_MASK)


def _is_behind(part: PartName, step: int) -> bool:
    """Return whether a window lies behind measured steps: it repeats none of them, and its number is nominal."""
    return part == "speed" and step > 0


def _mismatch(part: PartName, suspicion: Suspicion, step: int, stage: Stage) -> Mismatch:
    name = "clipping" if stage == "clipped" else _place(suspicion.names[0])
    metric = fact("windows.bits", stage=stage, step=step, part=part)
    at, suspicions = Divergence(stage=stage, step=step, at=name), (replace(suspicion, names=(name,)),)
    if _is_behind(part, step):
        metric, at = fact("windows.bits-behind", stage=stage, part=part), at.replace(step=None)
    basis: Basis = "portable" if part == "probe" else "given"
    numbers = {"observed": name, "limit": "equal", "detail": fact("windows.no-rounding")}
    found = differs(at, f"{part}.portable", metric, *suspicions, basis=basis, **numbers)
    return replace(found, is_certain=part == "probe")


def _num_equal(pair: Pair, part: PartName) -> int:
    """Return the number of windows with equal numbers."""
    return sum(next(window_parts(*windows), None) is None for windows in _common_windows(pair, part))


def proven_steps(pair: Pair) -> int:
    """Return the number of the probe's first steps with formulas proven equal."""
    sides, num = [found for _, found in sides_of(pair, "probe")], _num_equal(pair, "probe")
    is_whole = num == len(_common_windows(pair, "probe"))
    if len(sides) < 2 or not is_whole or side_mismatch(pair, "probe") is not None:
        return 0
    return min(map(first_steps, sides))


def lost_windows(pair: Pair, part: PartName) -> str:
    """Return why a part has no comparable windows, or ""."""
    return next((windows.lost for _, windows in sides_of(pair, part) if windows.lost), "")


def window_findings(pair: Pair, part: PartName) -> list[Finding]:
    """Return the proof that both sides compute equal formulas."""
    num = _num_equal(pair, part)
    if not num:
        return []
    metric, places = fact("windows.equal", part=part), len(_common_windows(pair, part))
    return [Finding(check=f"{part}.portable", outcome="pass", metric=metric, observed=num, limit=places)]


def window_notes(pair: Pair, part: PartName) -> list[Note]:
    """Describe what windows prove about a part."""
    notes = list[Note]()
    if num := _num_equal(pair, part):
        precision = pair.reference.record.spec.precision_of(part)
        text = fact("windows.proven", num=num, precision=precision, part=part)
        notes.append(Note(code="portable", text=text))
    for side, windows in sides_of(pair, part):
        if windows.lost:
            notes.append(Note(text=fact("windows.ended", side=side, why=windows.lost, part=part)))
    return notes
