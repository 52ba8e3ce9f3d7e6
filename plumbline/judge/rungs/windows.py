"""Compare training steps that both sides repeated in portable arithmetic ("windows"), of any part.

Portable arithmetic has the same bits on every CPU and GPU: equal bits prove equal formulas, different bits a real
difference. No tolerance is used here, but for a different order of the same operations.
"""

from __future__ import annotations

from dataclasses import replace

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import code_of_fields
from plumbline.judge.rungs.log import first_step_apart
from plumbline.judge.rungs.order import common_windows, first_apart, other_software, sides_of
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import (
    CLIPPED,
    DROPOUT_INPUT,
    DROPOUT_MASK,
    first_steps,
    other_formats,
    window_parts,
)
from plumbline.schema.spec import PartName
from plumbline.schema.task import draws_labels
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Note, Stage

_CODES: dict[Stage, CauseCode] = {
    "forward": "operator", "loss": "loss", "gradient": "gradient", "optimizer": "optimizer", "evaluation": "evaluation",
}  # fmt: skip
_RESTORED: dict[str, CauseCode] = {
    "weights": "optimizer", "moments": "optimizer", "schedule": "schedule", "generators": "rng",
}  # fmt: skip
_INCONSISTENT: dict[str, CauseCode] = {"masks": "rng", "gradients": "gradient"}


def window_mismatch(pair: Pair, part: PartName) -> Mismatch | None:
    """Return the first difference in a part's windows: of a device, of processes, or of the sides."""
    if (within := side_mismatch(pair, part)) is not None:
        return within
    windows = first_apart(pair, part)
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
    """Return a mismatch if a device does not repeat its bits, or a process differs from the others.

    Processes with different batches cannot repeat each other: then only the different batch is reported. If the sides
    differ at an earlier step, the others may be the ones that are right.
    """
    sides = sides_of(pair, part)
    if part == "probe" and (len(sides) < 2 or any(left.batch != right.batch for left, right in pair.common[:1])):
        return None
    if unsteady := [name for name, found in sides if found.repeated is False]:
        return _of_device(" and ".join(unsteady))
    apart = first_apart(pair, part)
    for side, found in ((side, rank) for side, windows in sides for rank in windows.ranks[:1]):
        if apart is None or found.at <= apart[0].step:
            stage: Stage = found.stage if found.stage in (*_CODES, "batch") else "forward"
            is_fed = stage == "batch"
            code, reason = _of_batch(pair, (found.name,)) if is_fed else _named(stage, found.name, found.formats)
            why = fact("windows.rank", rank=found.rank, side=side, part=reason)
            return replace(
                _mismatch(part, Suspicion(code, why, (), (found.name,), shown=True), found.at, stage), basis="given"
            )
    return None


def _of_device(side: str) -> Mismatch:
    finding = Finding(
        check="probe.device", outcome="drift", metric=fact("windows.repetitions"), observed=0, limit=1,
        detail=fact("windows.on-device", side=side),
    )  # fmt: skip
    suspicion = Suspicion("device", fact("windows.device", side=side), (fact("windows.one-result"),), shown=True)
    at = Divergence(stage="forward", step=0, at="device")
    return Mismatch("forward", at, (finding,), (suspicion,), basis="given")


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
    if name.startswith(CLIPPED):
        return "gradient", fact("windows.clipping")
    if stage == "evaluation" and name == "labels":
        return "data.labels", fact("windows.evaluated-labels")
    return _CODES[stage], fact(f"windows.{stage}", name=_place(name))


def _place(name: str) -> str:
    """Return the module that computes a tensor."""
    if name.startswith(CLIPPED):
        return "clipping"
    return name.rpartition(".")[0] if name.endswith(DROPOUT_INPUT) else name.removesuffix(DROPOUT_MASK)


def _is_behind(part: PartName, step: int) -> bool:
    """Return whether a window lies behind measured steps: it repeats none of them, and its number is nominal."""
    return part == "speed" and step > 0


def _mismatch(part: PartName, suspicion: Suspicion, step: int, stage: Stage) -> Mismatch:
    name, metric = _place(suspicion.names[0]), fact("windows.bits", stage=stage, step=step, part=part)
    at, suspicions = Divergence(stage=stage, step=step, at=name), (replace(suspicion, names=(name,)),)
    if _is_behind(part, step):
        metric, at = fact("windows.bits-behind", stage=stage, part=part), at.replace(step=None)
    finding = Finding(
        check=f"{part}.portable", outcome="drift", metric=metric, observed=name, limit="equal",
        detail=fact("windows.no-rounding"),
    )  # fmt: skip
    if part == "probe":
        rung = "clipped" if name == "clipping" else stage
        return Mismatch(rung, at, (finding,), suspicions, basis="portable", is_certain=True)
    at = at.replace(stage="learn") if part == "learn" else at
    return Mismatch(part, at, (finding,), suspicions, basis="given")


def _num_equal(pair: Pair, part: PartName) -> int:
    """Return the number of windows with equal bits."""
    return sum(next(window_parts(*windows), None) is None for windows in common_windows(pair, part))


def proven_steps(pair: Pair) -> int:
    """Return the number of the probe's first steps with formulas proven equal."""
    sides, num = [found for _, found in sides_of(pair, "probe")], _num_equal(pair, "probe")
    is_whole = num == len(common_windows(pair, "probe")) and not any(found.unportable for found in sides)
    if len(sides) < 2 or not is_whole or side_mismatch(pair, "probe") is not None:
        return 0
    return min(map(first_steps, sides))


def lost_windows(pair: Pair, part: PartName) -> str:
    """Return why a part has no comparable windows, or "".

    An operation without a portable form usually ends the windows of both sides; if of one side only, that is a reason,
    and in the probe a finding of its own.
    """
    found = [windows for _, windows in sides_of(pair, part)]
    why = next((windows.lost for windows in found if windows.lost), "")
    if not why and part != "probe" and not all(windows.unportable for windows in found) and not other_software(pair):
        why = next((windows.unportable for windows in found if windows.unportable), "")
    return why


def window_findings(pair: Pair, part: PartName) -> list[Finding]:
    """Return the proof that both sides compute equal formulas, or what prevents it in the probe."""
    check, findings = f"{part}.portable", list[Finding]()
    if num := _num_equal(pair, part):
        metric, places = fact("windows.equal", part=part), len(common_windows(pair, part))
        findings.append(Finding(check=check, outcome="pass", metric=metric, observed=num, limit=places))
    for side, found in sides_of(pair, part) if part == "probe" else ():
        if found.unportable:
            findings.append(
                Finding(
                    check=check, outcome="inconclusive", metric=fact("windows.operations-without-form"),
                    observed=found.unportable,
                    detail=fact("windows.no-form", side=side, operation=found.unportable),
                )
            )  # fmt: skip
    return findings


def window_notes(pair: Pair, part: PartName) -> list[Note]:
    """Describe what windows prove about a part."""
    notes = list[Note]()
    if num := _num_equal(pair, part):
        precision = pair.reference.record.spec.precision_of(part)
        text = fact("windows.proven", num=num, precision=precision, part=part)
        notes.append(Note(code="portable", text=text))
    for side, windows in sides_of(pair, part):
        if why := windows.unportable or windows.lost:
            notes.append(Note(text=fact("windows.ended", side=side, why=why, part=part)))
    return notes


def own_state(pair: Pair, *, parted: bool = False) -> Mismatch | None:
    """Return a mismatch if a run's weights changed outside its steps.

    `parted`: of processes whose weights differ, which is the consequence of a part that a window may name.
    """
    left, right = (loaded.record.evidence.learn for _, loaded in pair.sides)
    for side, curve in zip((side for side, _ in pair.sides), (left, right), strict=True):
        if curve is None:
            continue
        for part in curve.resumed_wrongly[: 0 if parted else 1]:
            step = curve.resumed_at[-1] if curve.resumed_at else 0
            why = fact("windows.resumed", side=side, part=part, step=step)
            return _of_state("learn.resume", _RESTORED.get(part, "unattributed"), why, step, part)
        wrong = [found for found in curve.inconsistent if (found.event == "processes") is parted]
        for found in sorted(wrong, key=lambda found: (found.step, found.rank))[:1]:
            is_evaluation = (found.part, found.event) == ("weights", "evaluation")
            code = "evaluation" if is_evaluation else _INCONSISTENT.get(found.part, "optimizer")
            code = "weights.init" if parted and found.step == 0 else code
            why = fact(f"windows.state-{found.event}", side=side, part=found.part, rank=found.rank, step=found.step)
            # Rounding hides it in the losses, which may part far behind.
            parting = first_step_apart(left, right) if parted and left and right else None
            evidence = () if parting is None else (fact("windows.curves-part", step=parting),)
            return _of_state("learn.state", code, why, found.step, found.part, *evidence)
    return None


def _of_state(check: str, code: CauseCode, why: Statement, step: int, part: str, *evidence: Statement) -> Mismatch:
    finding = Finding(check=check, outcome="drift", metric=fact("windows.own-state"), observed=part)
    at = Divergence(stage="learn", step=step, at=part)
    return Mismatch("learn", at, (finding,), (Suspicion(code, why, evidence, (part,), shown=True),), basis="given")
