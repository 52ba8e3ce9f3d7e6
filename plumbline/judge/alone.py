"""Judgement of one record by itself: what contradicts itself needs no reference."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.comparison import cause_of
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.captured import captured_notes
from plumbline.judge.rungs.proven import proofs_of, unproven
from plumbline.judge.stated import contradiction
from plumbline.judge.whole import whole
from plumbline.records import LoadedRecord
from plumbline.schema.captured import CapturedEvidence
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import ProbeEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PARTS
from plumbline.schema.stage import Stage
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Judgement, Note, worst

_HALF = ("bf16", "fp16")


def judge_alone(loaded: LoadedRecord) -> Judgement:
    """Return `drift` if the record contradicts itself, and `pass` if what it proves does not.

    A record without any proof is `inconclusive`: nothing in it can contradict itself.
    """
    record = whole(loaded)
    try:
        if problems := record.defects("candidate"):
            return Judgement(verdict=worst([each.outcome for each in problems]), findings=tuple(problems))
        found = list(_distinct(contradictions(loaded)))
    except InvalidInputError as error:
        finding = Finding(check="record.parts", outcome="invalid", metric="record", detail=str(error))
        return Judgement(verdict="invalid", findings=(finding,))
    findings = [finding for mismatch in found for finding in mismatch.findings] or [_proven(loaded)]
    causes = [cause_of(mismatch, ()).replace(sure="confirmed") for mismatch in found]
    return Judgement(
        verdict=worst([finding.outcome for finding in findings]), findings=tuple(findings), causes=tuple(causes),
        first_divergence=found[0].at if found else None,
        notes=tuple(_notes(loaded)),
    )  # fmt: skip


def _notes(loaded: LoadedRecord) -> Iterator[Note]:
    yield from captured_notes(Pair(loaded, loaded))
    for part in PARTS:
        lost = {proof.lost: proof.step for proof in reversed(proofs_of(loaded.record, part)) if proof.lost}
        for why, step in lost.items():
            yield Note(text=fact("proof.lost", part=part, side="record", step=step, why=why))


def contradictions(loaded: LoadedRecord) -> Iterator[Mismatch]:
    """Yield what a record contradicts of itself, in the order of consequence."""
    record = loaded.record
    captured, probe = record.evidence.captured, record.evidence.probe
    if captured is not None and probe is not None:
        yield from _captured(loaded, captured, probe)
    for part in PARTS:
        if getattr(record.evidence, part) is not None:
            if (shown := unproven(record, part)) is not None:
                yield shown
            if (stated := contradiction(loaded, part)) is not None:
                yield stated


def _captured(loaded: LoadedRecord, captured: CapturedEvidence, probe: ProbeEvidence) -> Iterator[Mismatch]:
    """Yield what a captured loop shows to be wrong by itself."""
    if captured.recorded and captured.updated and not captured.num_trained:
        yield _mismatch("gradient", 0, "parameters", "gradient", fact("captured.nothing-trained"))
    if captured.unheld:
        more = fact("captured.unheld-more", num=len(captured.unheld) - 1) if len(captured.unheld) > 1 else ""
        why = fact("captured.unheld", name=captured.unheld[0], more=more)
        yield _mismatch("optimizer", 0, captured.unheld[0], "optimizer", why)
    for step, name in captured.stale[:1]:
        yield _mismatch("gradient", step, name, "gradient", fact("captured.stale", name=name, step=step))
    for each in captured.exchanges:
        if each.absent:
            why = fact("captured.absent", rank=each.absent[0], step=each.step)
            yield _mismatch("gradient", each.step, f"process {each.absent[0]}", "gradient", why)
            break
        if each.apart:
            rank, name = each.apart[0]
            why = fact("captured.apart", rank=rank, name=name, step=each.step)
            yield _mismatch("gradient", each.step, name, "gradient", why)
            break
    for found in probe.inconsistent[:1]:
        why = fact(
            "windows.state-processes", side="record", part=found.part, rank=found.rank, step=found.step, training="loop"
        )
        yield _mismatch("optimizer", found.step, found.part, "optimizer", why)
    precision = loaded.record.spec.precision_of("probe")
    formats = {tap.dtype for tap in probe.taps if tap.stage == "forward" and tap.kind == "Linear" and tap.step == 0}
    if precision in _HALF and formats == {"float32"}:
        yield _mismatch("forward", 0, "Linear", "precision", fact("captured.no-autocast", precision=precision))


def _distinct(found: Iterator[Mismatch]) -> Iterator[Mismatch]:
    """Yield the first contradiction of each stage and place."""
    seen = set()
    for mismatch in found:
        key = mismatch.at.stage, mismatch.at.at
        if key not in seen:
            seen.add(key)
            yield mismatch


def _proven(loaded: LoadedRecord) -> Finding:
    proofs = [proof for part in PARTS for proof in proofs_of(loaded.record, part)]
    num = sum(len(proof.errors) for proof in proofs)
    detail = fact("alone.proven", num=num, steps=len({proof.step for proof in proofs if proof.errors}))
    if not num:
        return Finding(check="alone.proofs", outcome="inconclusive", metric="proofs", detail=fact("alone.nothing"))
    return Finding(check="alone.proofs", outcome="pass", metric="proofs", observed=num, detail=detail)


def _mismatch(stage: Stage, step: int, at: str, code: CauseCode, why: Statement) -> Mismatch:
    finding = Finding(check=f"alone.{stage}", outcome="drift", metric=fact("stated.by-itself"), detail=why)
    return Mismatch(
        Divergence(stage=stage, step=step, at=at), (finding,), (Suspicion(code, why, shown=True),), "stated"
    )
