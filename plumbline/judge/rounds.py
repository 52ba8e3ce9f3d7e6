"""A round: every platform against the reference platform and against its own baseline."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.judge.comparison import compare
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Finding, Judgement, PlatformResult, worst

__all__ = ["judge_round", "merge"]

_NO_BASELINE = "no baseline: accept this record with `plumbline baseline accept`"


def judge_round(
    records: Mapping[str, LoadedRecord],
    reference: str,
    baselines: Mapping[str, LoadedRecord],
    gates: Gates = Gates(),  # noqa: B008 - frozen
    *,
    reruns: Mapping[str, LoadedRecord] | None = None,
    platform_gates: Mapping[str, Gates] | None = None,
) -> dict[str, PlatformResult]:
    """One result for each platform that has a record. `reruns` confirm or refute a drop in speed."""
    judged = {
        name: _platform(
            name,
            records,
            reference,
            baseline=baselines.get(name),
            gates=(platform_gates or {}).get(name, gates),
            rerun=(reruns or {}).get(name),
        )
        for name in records
    }
    odd = _odd_one_out(records, judged, reference)
    return {name: _noted(result, name, odd) for name, result in judged.items()}


def _platform(
    name: str,
    records: Mapping[str, LoadedRecord],
    reference: str,
    *,
    baseline: LoadedRecord | None,
    gates: Gates,
    rerun: LoadedRecord | None,
) -> PlatformResult:
    record = records[name]
    parts: list[Judgement] = []
    if name != reference and reference in records:
        parts.append(compare(records[reference], record, gates, against=f"platform {reference}"))
    if baseline is not None and baseline.record.record_id != record.record.record_id:
        against = f"baseline {baseline.record.record_id}"
        confirms = rerun.record.evidence.speed if rerun is not None else None
        parts.append(compare(baseline, record, gates, against=against, confirms=confirms))
    if not parts:
        parts.append(_alone(record, gates))
    judgement = merge(parts)
    if baseline is None:
        judgement = judgement.replace(notes=(*judgement.notes, _NO_BASELINE))
    learn, speed = record.record.evidence.learn, record.record.evidence.speed
    ends = learn.evaluations if learn else ()
    return PlatformResult(
        **judgement.model_dump(),
        records=(record.record.record_id, *((rerun.record.record_id,) if rerun else ())),
        accuracy=ends[-1].accuracy if ends else None,
        samples_per_second=speed.samples_per_second if speed else None,
        timings=record.record.timings,
    )


def _alone(record: LoadedRecord, gates: Gates) -> Judgement:
    """A record with nothing to be held against: complete and finite, and no more than that is said."""
    judgement = compare(record, record, gates)
    if judgement.verdict != "pass":
        return judgement
    what = "nothing to compare with yet: the record is complete and finite"
    return Judgement(verdict="pass", findings=(Finding(check="record.complete", outcome="pass", detail=what),))


def merge(parts: list[Judgement]) -> Judgement:
    """Several judgements on one candidate as one; causes of one code are named once, the surest first."""
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
        notes=tuple(dict.fromkeys(line for part in parts for line in part.notes)),
    )


def _odd_one_out(
    records: Mapping[str, LoadedRecord], judged: Mapping[str, PlatformResult], reference: str
) -> dict[str, str]:
    """With three and more: who stands alone, and what fp64 says of it."""
    if len(records) < 3 or reference not in records:
        return {}
    against = f"platform {reference}"
    off = {
        name
        for name, result in judged.items()
        if name != reference and any(f.against == against and f.outcome == "drift" for f in result.findings)
    }
    others = [name for name in records if name != reference]
    if len(off) == len(others) and _agree(records, others):
        return {
            reference: f"{reference} is the odd one out: all others agree with each other"
            + _off(records, reference, others[0])
        }
    if len(off) == 1:
        name = next(iter(off))
        return {name: f"{name} is the odd one out: all others agree with {reference}{_off(records, name, reference)}"}
    return {}


def _agree(records: Mapping[str, LoadedRecord], names: list[str]) -> bool:
    first = records[names[0]]
    return all(compare(first, records[name]).verdict == "pass" for name in names[1:])


def _off(records: Mapping[str, LoadedRecord], name: str, other: str) -> str:
    """What the fp64 runs say of two platforms: each one's worst own error at the first step."""
    pair = Pair(records[other], records[name])
    owns = [one.own for one in pair.errors(0, "forward") if None not in one.own]
    if not owns:
        return ""
    ours, theirs = max(own[1] or 0.0 for own in owns), max(own[0] or 0.0 for own in owns)
    return f"; from its own fp64 run {name} is up to {ours:.2g} away, {other} {theirs:.2g}"


def _noted(result: PlatformResult, name: str, odd: Mapping[str, str]) -> PlatformResult:
    if not odd:
        return result
    notes = (*result.notes, *odd.values())
    if name in odd and result.verdict == "pass":
        finding = Finding(check="round.odd_one_out", outcome="drift", detail=odd[name])
        return result.replace(verdict="drift", findings=(*result.findings, finding), notes=notes)
    return result.replace(notes=notes)
