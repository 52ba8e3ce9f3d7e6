"""From a round's records to a result for each platform and workload. Pure: the baselines are handed in."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.judge import judge_round, needs_rerun
from plumbline.records import LoadedRecord
from plumbline.rounds.harvest import Harvest
from plumbline.rounds.outcome import absent_result
from plumbline.rounds.plan import MAIN, RERUN, Assignment, Round
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import PlatformResult

__all__ = ["Baselines", "judge_harvest", "platform_gates", "reruns_needed", "stand_in"]

Baselines = Mapping[str, Mapping[str, LoadedRecord]]
"""By workload, then by platform."""


def platform_gates(this: Round) -> dict[str, Gates]:
    """The gates of the platforms that have their own limit."""
    return {
        name: this.suite.gates.replace(throughput_drop=platform.throughput_drop)
        for name, platform in this.suite.platforms.items()
        if platform.throughput_drop is not None
    }


def stand_in(this: Round, records: Mapping[str, LoadedRecord]) -> str:
    """The reference, or if it has no record, the first platform that has one."""
    return this.suite.reference if this.suite.reference in records else next(iter(records), this.suite.reference)


def judge_harvest(this: Round, found: Harvest, baselines: Baselines) -> dict[str, dict[str, PlatformResult]]:
    """Results by workload, then by platform, in the suite's order."""
    return {workload: _judge_workload(this, workload, found, baselines.get(workload, {})) for workload in this.specs}


def reruns_needed(this: Round, judged: Mapping[str, Mapping[str, PlatformResult]]) -> tuple[Assignment, ...]:
    """The trainings whose speed has to be measured once more before a drop is called drift."""
    return tuple(
        Assignment(platform, workload, RERUN)
        for workload, results in judged.items()
        for platform, result in results.items()
        if needs_rerun(result)
    )


def _judge_workload(
    this: Round, workload: str, found: Harvest, baselines: Mapping[str, LoadedRecord]
) -> dict[str, PlatformResult]:
    records = found.of(workload)
    reference = stand_in(this, records)
    judged = judge_round(
        records,
        reference,
        baselines,
        this.suite.gates,
        reruns=found.of(workload, RERUN),
        platform_gates=platform_gates(this),
    )
    missing = {one.platform: absent_result(why) for one, why in found.absent.items() if _is_main(one, workload)}
    results = {name: (judged | missing)[name] for name in this.suite.platforms if name in judged or name in missing}
    for one, notes in found.notes.items():
        if _is_main(one, workload):
            results[one.platform] = _with_notes(results[one.platform], notes)
    if records and reference != this.suite.reference:
        note = f"{this.suite.reference}, the reference, has no record; held against {reference} in its place"
        results = {
            name: _with_notes(result, (note,)) if name in records else result for name, result in results.items()
        }
    return results


def _is_main(one: Assignment, workload: str) -> bool:
    return (one.workload, one.what) == (workload, MAIN)


def _with_notes(result: PlatformResult, notes: tuple[str, ...]) -> PlatformResult:
    return result.replace(notes=(*result.notes, *notes))
