"""Experiments of a round: which reruns the open questions ask for, and what their records answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from plumbline.digest import digest_bytes
from plumbline.judge import compare
from plumbline.judge.confirm import Confirmation, Request
from plumbline.records import LoadedRecord
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.judging import Baselines, gates_of, reference_of
from plumbline.rounds.plan import Assignment, Round
from plumbline.schema.verdict import PlatformResult

__all__ = ["Case", "Wanted", "absorb", "apply_cases", "open_cases", "wanted"]

Results = Mapping[str, Mapping[str, PlatformResult]]
"""By workload, then by platform."""


@dataclass(frozen=True, slots=True)
class Case:
    """One drift on one platform, and how far its confirmation has come."""

    platform: str
    workload: str
    reference: str | None
    """The platform that runs the reference's experiments; none where the reference is a night gone by."""
    confirmation: Confirmation


Wanted = tuple[Case, Request, Assignment]
"""An experiment, whose case asks for it, and who runs it."""


def open_cases(this: Round, found: GatheredRecords, baselines: Baselines, results: Results) -> tuple[Case, ...]:
    """One case for each platform that drifts: against the reference platform, else against its own baseline."""
    cases = []
    for workload, platforms in results.items():
        records = found.of(workload)
        reference = reference_of(this, records, baselines.get(workload, {}))
        for name, result in platforms.items():
            if result.verdict == "drift" and name in records:
                sides: list[tuple[str | None, LoadedRecord]] = []
                if name != reference:
                    sides.append((reference, records[reference]))
                if before := baselines.get(workload, {}).get(name):
                    sides.append((None, before))
                cases += _case(this, name, workload, records[name], sides)
    return tuple(cases)


def _case(
    this: Round, name: str, workload: str, candidate: LoadedRecord, sides: Sequence[tuple[str | None, LoadedRecord]]
) -> list[Case]:
    """The case against the first side that there is something to test against."""
    for reference, record in sides:
        judgement = compare(record, candidate, gates_of(this, name))
        confirmation = Confirmation.begin(record, candidate, judgement, this.suite.dispatch.experiments)
        if confirmation.next() is not None:
            return [Case(name, workload, reference, confirmation)]
    return []


def wanted(cases: Sequence[Case]) -> tuple[Wanted, ...]:
    """The next experiment of each case, and who runs it."""
    asked = []
    for case in cases:
        request = case.confirmation.next()
        if request is None:
            continue
        platform = case.platform if request.runs_on == "candidate" else case.reference
        name = request.experiment.experiment_id
        if platform is not None:
            what = f"x{digest_bytes(name.encode())[:10]}"
            title = f"experiment: {request.experiment.suspect}"
            asked.append((case, request, Assignment(platform, case.workload, what, name, title)))
    return tuple(asked)


def absorb(cases: Sequence[Case], answers: Mapping[str, LoadedRecord], lost: Mapping[str, str]) -> tuple[Case, ...]:
    """Every case, with what came back for its experiment, or why nothing did."""
    return tuple(_absorbed(case, answers, lost) for case in cases)


def _absorbed(case: Case, answers: Mapping[str, LoadedRecord], lost: Mapping[str, str]) -> Case:
    request = case.confirmation.next()
    if request is None:
        return case
    name = request.experiment.experiment_id
    why = lost.get(name) or "no record came back"
    return replace(case, confirmation=case.confirmation.absorb(request, answers.get(name), why))


def apply_cases(results: Results, cases: Iterable[Case]) -> dict[str, dict[str, PlatformResult]]:
    """The results with their causes as sure as the experiments made them."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for case in cases:
        result = changed[case.workload][case.platform]
        causes = case.confirmation.judgement.causes
        tested = {cause.code for cause in case.confirmation.base.causes} | {cause.code for cause in causes}
        others = [cause for cause in result.causes if cause.code not in tested]
        changed[case.workload][case.platform] = result.replace(causes=(*causes, *others))
    return changed
