"""The canary of a round: the judge is proven on copies of tonight's records before its verdicts count. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plumbline.judge.canary import CanaryResult, canary_findings, prove
from plumbline.judge.comparison import compare
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.judging import gates_of
from plumbline.rounds.plan import MAIN, Round
from plumbline.schema.verdict import Judgement, PlatformResult, worst

__all__ = ["apply_canary", "prove_round", "proven_note"]

Proofs = Mapping[tuple[str, str], tuple[CanaryResult, ...]]
"""By (workload, platform)."""


def prove_round(round_: Round, found: GatheredRecords, judge: Callable[..., Judgement] = compare) -> Proofs:
    """Prove the judge on the record of every platform and workload."""
    return {
        (one.workload, one.platform): prove(record, gates_of(round_, one.platform), judge)
        for one, record in found.records.items()
        if one.what == MAIN
    }


def apply_canary(
    results: Mapping[str, Mapping[str, PlatformResult]], proofs: Proofs
) -> dict[str, dict[str, PlatformResult]]:
    """Return the results; where the judge misses a known fault, the platform's result is invalid."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for (workload, platform), proof in proofs.items():
        findings = canary_findings(proof)
        result = changed.get(workload, {}).get(platform)
        if findings and result is not None:
            verdict = worst([result.verdict, "invalid"])
            findings = (*result.findings, *findings)
            changed[workload][platform] = result.replace(verdict=verdict, findings=findings)
    return changed


def proven_note(round_: Round, proofs: Proofs) -> str:
    """Return the line that says when the judge was last proven; empty where no record could prove it."""
    every = [one for proof in proofs.values() for one in proof]
    if not every:
        return ""
    found = sum(one.is_found for one in every)
    return f"judge last proven: {round_.night}, {found} of {len(every)} known faults found in copies of the records"
