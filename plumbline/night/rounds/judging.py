"""Judgement of a round by platform and workload, with canary test. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plumbline.judge import Comparisons, TrustedReference, judge_round, needs_rerun, trusted_reference
from plumbline.judge.canary import CanaryResult, ProbeProofs, canary_findings, prove
from plumbline.judge.comparison import compare
from plumbline.judge.gates.gate import PastNights
from plumbline.judge.whole import stands_alone
from plumbline.night.rounds.gathered import Absence, GatheredRecords
from plumbline.night.rounds.isolation import Defect, isolated, largest_judgeable
from plumbline.night.rounds.outcome import absent_result
from plumbline.night.rounds.plan import MAIN, RERUN, Assignment, Round
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Finding, Judgement, Note, PlatformResult, worst

BASELINE_CHECK = "baseline.record"
"""Name of the check that a baseline is readable."""

Baselines = Mapping[str, Mapping[str, LoadedRecord]]
"""By workload, then by platform."""

Proofs = Mapping[tuple[str, str], tuple[CanaryResult, ...]]
"""By (workload, platform)."""


def gates_of(round_: Round, platform: str) -> Gates:
    """Return the suite's gates, with the platform's throughput limit if set."""
    limit = round_.suite.platforms[platform].throughput_drop
    return round_.suite.gates if limit is None else round_.suite.gates.replace(throughput_drop=limit)


def stand_in(round_: Round, records: Mapping[str, LoadedRecord]) -> str:
    """Return the platform to compare all others with.

    This is the suite's reference if its record is valid, else the first platform with a valid record.
    """
    reference = round_.suite.reference
    names = [reference] * (reference in records) + [name for name in records if name != reference]
    return next((name for name in names if stands_alone(records[name])), next(iter(names), reference))


def reference_of(
    round_: Round, records: Mapping[str, LoadedRecord], baselines: Mapping[str, LoadedRecord], table: Comparisons
) -> TrustedReference:
    """Return the reference platform, replaced if it is the one that drifted."""
    gates = {name: gates_of(round_, name) for name in records}
    return trusted_reference(records, stand_in(round_, records), baselines, gates, table=table)


def judge_harvest(
    round_: Round,
    gathered: GatheredRecords,
    baselines: Baselines,
    unreadable: Mapping[str, Mapping[str, str]],
    past: Mapping[str, Mapping[str, PastNights]],
) -> dict[str, dict[str, PlatformResult]]:
    """Return judgements by workload and platform. `unreadable` names damaged baselines, `past` what nights decide."""
    results = {
        workload: _judge_workload(round_, workload, gathered, baselines.get(workload, {}), past.get(workload, {}))
        for workload in round_.specs
    }
    for workload, damaged in unreadable.items():
        for platform in damaged.keys() & gathered.of(workload).keys():
            results[workload][platform] = _without_past(results[workload][platform], damaged[platform])
    return results


def _without_past(result: PlatformResult, why: str) -> PlatformResult:
    """Mark a result invalid as its baseline is unreadable."""
    finding = Finding(
        check=BASELINE_CHECK,
        outcome="invalid",
        detail=f"{why} (hint: accept a different record with `plumbline baseline accept`)",
    )
    return result.replace(
        verdict="drift" if result.verdict == "drift" else "invalid", findings=(*result.findings, finding)
    )


def reruns_needed(judged: Mapping[str, Mapping[str, PlatformResult]]) -> tuple[Assignment, ...]:
    """Return trainings with a throughput drop that a rerun must confirm."""
    return tuple(
        Assignment(platform, workload, RERUN)
        for workload, results in judged.items()
        for platform, result in results.items()
        if needs_rerun(result)
    )


def _judge_workload(
    round_: Round,
    workload: str,
    gathered: GatheredRecords,
    baselines: Mapping[str, LoadedRecord],
    past: Mapping[str, PastNights],
) -> dict[str, PlatformResult]:
    judged, defects = _judged(round_, workload, gathered, baselines, past)
    records = {name: record for name, record in gathered.of(workload).items() if name in judged}
    reference = stand_in(round_, records)
    missing = {
        assignment.platform: absent_result(why)
        for assignment, why in gathered.absent.items()
        if _is_main(assignment, workload)
    } | {name: absent_result(Absence(defect.why, broken=True)) for name, defect in defects.items()}
    results = {name: (judged | missing)[name] for name in round_.suite.platforms if name in judged or name in missing}
    for assignment, notes in gathered.notes.items():
        if _is_main(assignment, workload):
            told = tuple(Note(code="attempt", text=note) for note in notes)
            results[assignment.platform] = _with_notes(results[assignment.platform], told)
    if records and reference != round_.suite.reference:
        state = "failed" if round_.suite.reference in records else "has no record"
        text = f"{round_.suite.reference}, the reference, {state}; compared with {reference} instead"
        results = {
            name: _with_notes(result, (Note(code="reference", text=text),)) if name in records else result
            for name, result in results.items()
        }
    return results


def _judged(
    round_: Round,
    workload: str,
    gathered: GatheredRecords,
    baselines: Mapping[str, LoadedRecord],
    past: Mapping[str, PastNights],
) -> tuple[dict[str, PlatformResult], dict[str, Defect]]:
    """Judge all records, excluding those that cause errors."""
    records, reruns = gathered.of(workload), gathered.of(workload, RERUN)

    def judge(names: Sequence[str]) -> dict[str, PlatformResult]:
        chosen = {name: records[name] for name in names}
        return judge_round(
            chosen,
            stand_in(round_, chosen),
            baselines,
            round_.suite.gates,
            reruns=reruns,
            platform_gates={name: gates_of(round_, name) for name in round_.suite.platforms},
            nights=past,
            table=gathered.table,
        )

    judged = isolated(", ".join(records), lambda: judge(list(records)))
    if not isinstance(judged, Defect):
        return judged, {}
    kept, defects = largest_judgeable(sorted(records, key=lambda name: name != round_.suite.reference), judge)
    return judge(kept), defects


def _is_main(assignment: Assignment, workload: str) -> bool:
    return (assignment.workload, assignment.what) == (workload, MAIN)


def _with_notes(result: PlatformResult, notes: tuple[Note, ...]) -> PlatformResult:
    return result.replace(notes=(*result.notes, *notes))


def prove_round(round_: Round, gathered: GatheredRecords, judge: Callable[..., Judgement] = compare) -> Proofs:
    """Test the judge with known faults injected into every record."""
    known = ProbeProofs()
    return {
        (assignment.workload, assignment.platform): _proof(round_, assignment.platform, record, judge, known)
        for assignment, record in gathered.records.items()
        if assignment.what == MAIN
    }


def _proof(
    round_: Round, platform: str, record: LoadedRecord, judge: Callable[..., Judgement], known: ProbeProofs
) -> tuple[CanaryResult, ...]:
    proof = isolated(platform, lambda: prove(record, gates_of(round_, platform), judge, known))
    return (CanaryResult("any", "invalid"),) if isinstance(proof, Defect) else proof


def apply_canary(
    results: Mapping[str, Mapping[str, PlatformResult]], proofs: Proofs
) -> dict[str, dict[str, PlatformResult]]:
    """Lower a platform's verdict if the judge missed an injected fault."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for (workload, platform), proof in proofs.items():
        findings = canary_findings(proof)
        result = changed.get(workload, {}).get(platform)
        if findings and result is not None:
            verdict = worst([result.verdict, *(finding.outcome for finding in findings)])
            findings = (*result.findings, *findings)
            changed[workload][platform] = result.replace(verdict=verdict, findings=findings)
    return changed


def proven_note(round_: Round, proofs: Proofs) -> str:
    """Return a note on the judge's last fault-injection test, or ""."""
    every = [result for proof in proofs.values() for result in proof]
    if not every:
        return ""
    num_found = sum(result.is_found for result in every)
    return f"self-test of {round_.night}: {num_found} of {len(every)} planted faults found"
