"""From a round's records to a result for each platform and workload. Pure: the baselines are handed in."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.judge import judge_round, needs_rerun, trusted_reference
from plumbline.judge.validity import stands_alone
from plumbline.records import LoadedRecord
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.outcome import absent_result
from plumbline.rounds.plan import MAIN, RERUN, Assignment, Round
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Finding, Note, PlatformResult

__all__ = ["BASELINE_CHECK", "Baselines", "gates_of", "judge_harvest", "reference_of", "reruns_needed", "stand_in"]

BASELINE_CHECK = "baseline.record"
"""The check that a baseline can be read."""

Baselines = Mapping[str, Mapping[str, LoadedRecord]]
"""By workload, then by platform."""


def gates_of(this: Round, platform: str) -> Gates:
    """The suite's gates, with the platform's own limit where it has one."""
    limit = this.suite.platforms[platform].throughput_drop
    return this.suite.gates if limit is None else this.suite.gates.replace(throughput_drop=limit)


def stand_in(this: Round, records: Mapping[str, LoadedRecord]) -> str:
    """Return the platform that the others are held against.

    It is the reference if its record is whole, else the first platform whose record is.
    """
    reference = this.suite.reference
    names = [reference] * (reference in records) + [name for name in records if name != reference]
    return next((name for name in names if stands_alone(records[name])), next(iter(names), reference))


def reference_of(this: Round, records: Mapping[str, LoadedRecord], baselines: Mapping[str, LoadedRecord]) -> str:
    """Return the platform that the others are judged against: the stand-in, unless it is the one that is off."""
    whole = {name: record for name, record in records.items() if stands_alone(record)}
    return trusted_reference(whole, stand_in(this, records), baselines)


def judge_harvest(
    this: Round, found: GatheredRecords, baselines: Baselines, unreadable: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, PlatformResult]]:
    """Results by workload, then by platform, in the suite's order; `unreadable` says which baselines are damaged."""
    results = {workload: _judge_workload(this, workload, found, baselines.get(workload, {})) for workload in this.specs}
    for workload, damaged in unreadable.items():
        for platform in damaged.keys() & found.of(workload).keys():
            results[workload][platform] = _without_past(results[workload][platform], damaged[platform])
    return results


def _without_past(result: PlatformResult, why: str) -> PlatformResult:
    """It was not held against its own past, though it has one: that is no pass; and a drift stays one."""
    finding = Finding(check=BASELINE_CHECK, outcome="invalid", detail=f"{why} (accept another: plumbline baseline)")
    return result.replace(
        verdict="drift" if result.verdict == "drift" else "invalid", findings=(*result.findings, finding)
    )


def reruns_needed(judged: Mapping[str, Mapping[str, PlatformResult]]) -> tuple[Assignment, ...]:
    """The trainings whose speed has to be measured once more before a drop is called drift."""
    return tuple(
        Assignment(platform, workload, RERUN)
        for workload, results in judged.items()
        for platform, result in results.items()
        if needs_rerun(result)
    )


def _judge_workload(
    this: Round, workload: str, found: GatheredRecords, baselines: Mapping[str, LoadedRecord]
) -> dict[str, PlatformResult]:
    records = found.of(workload)
    reference = stand_in(this, records)
    judged = judge_round(
        records,
        reference,
        baselines,
        this.suite.gates,
        reruns=found.of(workload, RERUN),
        platform_gates={name: gates_of(this, name) for name in this.suite.platforms},
    )
    missing = {one.platform: absent_result(why) for one, why in found.absent.items() if _is_main(one, workload)}
    results = {name: (judged | missing)[name] for name in this.suite.platforms if name in judged or name in missing}
    for one, notes in found.notes.items():
        if _is_main(one, workload):
            told = tuple(Note(code="attempt", text=note) for note in notes)
            results[one.platform] = _with_notes(results[one.platform], told)
    if records and reference != this.suite.reference:
        state = "failed" if this.suite.reference in records else "has no record"
        text = f"{this.suite.reference}, the reference, {state}; compared with {reference} instead"
        results = {
            name: _with_notes(result, (Note(code="reference", text=text),)) if name in records else result
            for name, result in results.items()
        }
    return results


def _is_main(one: Assignment, workload: str) -> bool:
    return (one.workload, one.what) == (workload, MAIN)


def _with_notes(result: PlatformResult, notes: tuple[Note, ...]) -> PlatformResult:
    return result.replace(notes=(*result.notes, *notes))
