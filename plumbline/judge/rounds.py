"""Judgement of a round: each platform against the reference and its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumbline.judge.alone import judge_alone
from plumbline.judge.compared import Comparisons
from plumbline.judge.comparison import compare
from plumbline.judge.consensus import Doubt, TrustedReference, exonerate, trusted_reference
from plumbline.judge.gates.gate import PastNights
from plumbline.judge.rungs.production import production_notes
from plumbline.judge.whole import whole
from plumbline.records import LoadedRecord
from plumbline.schema.captured import captured
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Divergence, Finding, Judgement, Note, PlatformResult, worst

_NO_BASELINE = Note(code="no-baseline", text=fact("round.no-baseline"))


def judge_round(
    records: Mapping[str, LoadedRecord],
    reference: str,
    baselines: Mapping[str, LoadedRecord],
    gates: Gates = Gates(),  # noqa: B008 - frozen
    *,
    reruns: Mapping[str, LoadedRecord] | None = None,
    platform_gates: Mapping[str, Gates] | None = None,
    nights: Mapping[str, PastNights] | None = None,
    table: Comparisons | None = None,
) -> dict[str, PlatformResult]:
    """Return one result for each platform that has a record.

    All are judged against `trusted_reference`: `reference`, unless that platform is the different one. `reruns` confirm
    or refute a drop in speed. `nights` has what each platform's history decides, `table` the comparisons of the round.
    """
    table = table if table is not None else Comparisons()
    gates_of = {name: (platform_gates or {}).get(name, gates) for name in records}
    trusted = trusted_reference(records, reference, baselines, gates_of, table=table)
    judged = {
        name: _platform(
            name,
            records,
            trusted,
            baseline=baselines.get(name),
            gates=gates_of[name],
            rerun=(reruns or {}).get(name),
            nights=(nights or {}).get(name, PastNights()),
            table=table,
        )
        for name in records
    }
    notes = _who_is_off(records, judged, reference, trusted)
    return {name: result.replace(notes=(*result.notes, *notes)) for name, result in judged.items()}


def _platform(
    name: str,
    records: Mapping[str, LoadedRecord],
    trusted: TrustedReference,
    *,
    baseline: LoadedRecord | None,
    gates: Gates,
    rerun: LoadedRecord | None,
    nights: PastNights,
    table: Comparisons,
) -> PlatformResult:
    record = records[name]
    parts: list[Judgement] = []
    if name != trusted.name and trusted.name in records:
        part = compare(records[trusted.name], record, gates, against=f"platform {trusted.name}", table=table)
        doubt = trusted.doubts.get(name)
        parts.append(part if doubt is None else _doubted(part, doubt, f"platform {trusted.name}"))
    if baseline is not None and baseline.record.record_id != record.record.record_id:
        against = f"baseline {baseline.record.record_id}"
        problem = rerun_problem(record, rerun) if rerun is not None else ""
        confirms = rerun.record.evidence.speed if rerun is not None and not problem else None
        part = compare(baseline, record, gates, against=against, confirms=confirms, nights=nights, table=table)
        note = Note(text=fact("round.useless-rerun", problem=problem))
        parts.append(part.replace(notes=(*part.notes, note)) if problem else part)
    if not parts:
        parts.append(_alone(record, gates, nights, table))
    judgement = merge(parts)
    if baseline is None and judgement.verdict == "pass":
        judgement = judgement.replace(notes=(*judgement.notes, _NO_BASELINE))
    return PlatformResult(
        **judgement.model_dump(),
        records=(record.record.record_id, *((rerun.record.record_id,) if rerun else ())),
        **record_numbers(record.record),
        timings=record.record.timings,
    )


def record_numbers(record: RunRecord) -> dict[str, Any]:
    """Return a record's accuracy, its chance and best possible value, and its throughput."""
    learn, speed, data = record.evidence.learn, record.evidence.speed, record.evidence.data
    ends = learn.evaluations if learn else ()
    return {
        "accuracy": ends[-1].accuracy if ends else None,
        "chance": learn.chance if learn else None,
        "best_accuracy": data.best_accuracy if data and ends else None,
        "samples_per_second": speed.samples_per_second if speed else None,
    }


def _doubted(part: Judgement, doubt: Doubt, against: str) -> Judgement:
    """Remove a judgement's causes if its differences are not this platform's fault."""
    place = part.first_divergence
    doubt = Doubt(
        doubt.outcome,
        fact(
            "round.doubt",
            why=doubt.why,
            place=fact("round.in-place", place=_place(place)) if place is not None else "",
        ),
    )
    cleared = exonerate(part, doubt, against).replace(causes=())
    if doubt.outcome == "inconclusive":
        return cleared
    note = Note(code="accepted-difference", text=doubt.why)
    return cleared.replace(first_divergence=None, notes=(*part.notes, note))


def _place(divergence: Divergence) -> str:
    step = f" at step {divergence.step}" if divergence.step is not None else ""
    return f"{divergence.part} {divergence.stage}".strip() + f"{step}{f': {divergence.at}' if divergence.at else ''}"


def _alone(record: LoadedRecord, gates: Gates, nights: PastNights, table: Comparisons) -> Judgement:
    """Judge a record without a reference: is it complete and finite, and does a loop not contradict itself?"""
    judgement = compare(record, record, gates, nights=nights, table=table)
    if judgement.verdict != "pass":
        return judgement
    by_itself = judge_alone(record) if captured(record.record.spec) else None
    if by_itself is not None and by_itself.verdict != "inconclusive":  # a record that proves nothing is complete
        return by_itself
    detail = fact("round.alone")
    finding = Finding(check="record.complete", outcome="pass", detail=detail)
    return Judgement(verdict="pass", findings=(finding,), notes=production_notes(table.of(record, record).pair))


def merge(parts: list[Judgement]) -> Judgement:
    """Merge judgements on one candidate, keeping the most certain cause of each code."""
    causes: dict[str, Cause] = {}
    order = {"confirmed": 0, "likely": 1, "unattributed": 2}
    for cause in (cause for part in parts for cause in part.causes):
        known = causes.get(cause.code)
        if known is None or order[cause.sure] < order[known.sure]:
            causes[cause.code] = cause
    return Judgement(
        verdict=worst([part.verdict for part in parts]),
        findings=tuple(finding for part in parts for finding in part.findings),
        first_divergence=next((part.first_divergence for part in parts if part.first_divergence), None),
        causes=tuple(causes.values()),
        suspects=tuple(dict.fromkeys(line for part in parts for line in part.suspects)),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _who_is_off(
    records: Mapping[str, LoadedRecord],
    judged: Mapping[str, PlatformResult],
    wanted: str,
    trusted: TrustedReference,
) -> tuple[Note, ...]:
    """Note a replaced reference, or the single platform that differs from all others."""
    reference, against = trusted.name, f"platform {trusted.name}"
    off = [
        name
        for name, result in judged.items()
        if name != reference and any(f.against == against and f.outcome == "drift" for f in result.findings)
    ]
    if wanted != reference:
        state = fact("round.differs", reference=reference) if wanted in off else fact("round.no-agreeing-baseline")
        text = fact("round.replaced", platform=wanted, state=state, reference=reference)
        return (Note(code="reference", text=text),)
    if len(records) < 3 or len(off) != 1 or trusted.doubts:
        return ()
    text = fact("round.odd-one-out", platform=off[0], reference=reference)
    return (Note(code="odd-one-out", text=text),)


def rerun_problem(record: LoadedRecord, rerun: LoadedRecord) -> Statement:
    """Return why a rerun cannot decide about a throughput drop, or ""."""
    own, other = (side.record.fingerprint.hardware_class for side in (record, rerun))
    if other != own:
        return fact("rerun.ran-on", machine=other, training=own)
    # An ordered rerun has the derived spec; deriving it again changes nothing.
    if rerun.record.spec.speed_alone != record.record.spec.speed_alone:
        return fact("rerun.different-spec")
    try:
        missing = next((finding.detail for finding in whole(rerun).defects("rerun")), "")
    except InvalidInputError as error:
        return fact("rerun.unreadable", error=error)
    if rerun.record.evidence.speed is None:
        return fact("rerun.no-speed")
    return fact("rerun.lacked", what=missing) if missing else ""
