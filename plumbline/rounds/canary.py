"""Canary of a round: a test of the judge on tonight's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plumbline.judge.canary import CanaryResult, ProbeProofs, canary_findings, prove
from plumbline.judge.comparison import compare
from plumbline.records import LoadedRecord
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.isolation import Defect, isolated
from plumbline.rounds.judging import gates_of
from plumbline.rounds.plan import MAIN, Round
from plumbline.schema.verdict import Judgement, PlatformResult, worst

Proofs = Mapping[tuple[str, str], tuple[CanaryResult, ...]]
"""By (workload, platform)."""


def prove_round(round_: Round, gathered: GatheredRecords, judge: Callable[..., Judgement] = compare) -> Proofs:
    """Test the judge on the record of every platform and workload."""
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
    """Lower a platform's verdict if the judge misses a known fault, or cannot decide on it."""
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
    """Return the note on the judge's last test; "" without any record."""
    every = [result for proof in proofs.values() for result in proof]
    if not every:
        return ""
    num_found = sum(result.is_found for result in every)
    return f"judge last proven: {round_.night}, {num_found} of {len(every)} known faults found in copies of the records"
