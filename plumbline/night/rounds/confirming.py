"""Rerun experiments of a round, and evaluation of their records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from plumbline.judge import Comparisons, compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.confirmation import Confirmation, Request
from plumbline.judge.consensus import CHECK, Doubt, exonerate
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.isolation import Defect, isolated
from plumbline.night.rounds.judging import Baselines, gates_of, reference_of
from plumbline.night.rounds.plan import Assignment, Round
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_bytes
from plumbline.schema.verdict import Cause, Finding, Judgement, PlatformResult, worst

Results = Mapping[str, Mapping[str, PlatformResult]]
"""By workload, then by platform."""


@dataclass(frozen=True, slots=True)
class Case:
    """One drift on one platform, with its confirmation state."""

    platform: str
    workload: str
    reference: str | None
    """Platform for the reference's experiments; `None` if the reference is a baseline."""
    confirmation: Confirmation


Wanted = tuple[Case, Request, Assignment]
"""Case, its requested experiment, and the assignment that runs it."""


def open_cases(round_: Round, gathered: GatheredRecords, baselines: Baselines, results: Results) -> tuple[Case, ...]:
    """Return a case per drifted platform, against reference or own baseline."""
    cases = []
    for workload, platforms in results.items():
        if all(result.verdict != "drift" for result in platforms.values()):
            continue
        records = {
            name: record for name, record in gathered.of(workload).items() if platforms[name].verdict != "invalid"
        }
        before = baselines.get(workload, {})
        reference = reference_of(round_, records, before, gathered.table)
        for name, result in platforms.items():
            if result.verdict == "drift" and name in records:
                sides: list[tuple[str | None, LoadedRecord]] = []
                if name != reference.name and name not in reference.doubts:
                    sides.append((reference.name, records[reference.name]))
                if name in before:
                    sides.append((None, before[name]))
                case = partial(_case, round_, name, workload, records[name], sides, table=gathered.table)
                opened = isolated(name, case)
                cases += [] if isinstance(opened, Defect) else opened
    return tuple(cases)


def _case(
    round_: Round,
    name: str,
    workload: str,
    candidate: LoadedRecord,
    sides: Sequence[tuple[str | None, LoadedRecord]],
    *,
    table: Comparisons,
) -> list[Case]:
    """Return a case against the first side with a testable drift."""
    for reference, record in sides:
        judgement = compare(record, candidate, gates_of(round_, name), table=table)
        confirmation = begin(record, candidate, judgement, round_.suite.dispatch.experiments, table)
        if next_request(confirmation) is not None:
            return [Case(name, workload, reference, confirmation)]
    return []


def wanted(cases: Sequence[Case]) -> tuple[Wanted, ...]:
    """Return the next experiment for each case."""
    asked = []
    for case in cases:
        request = next_request(case.confirmation)
        if request is None:
            continue
        platform = case.platform if request.runs_on == "candidate" else case.reference
        name = request.experiment.experiment_id
        if platform is not None:
            text = f"x{digest_bytes(name.encode())[:10]}"
            title = f"experiment: {request.experiment.suspect}"
            asked.append((case, request, Assignment(platform, case.workload, text, name, title)))
    return tuple(asked)


def absorb(cases: Sequence[Case], answers: Mapping[str, LoadedRecord], lost: Mapping[str, str]) -> tuple[Case, ...]:
    """Update all cases with the results of their experiments."""
    return tuple(_absorbed(case, answers, lost) for case in cases)


def _absorbed(case: Case, answers: Mapping[str, LoadedRecord], lost: Mapping[str, str]) -> Case:
    request = next_request(case.confirmation)
    if request is None:
        return case
    name = request.experiment.experiment_id
    why = lost.get(name) or "no record was returned"
    after = isolated(case.platform, lambda: after_experiment(case.confirmation, request, answers.get(name), why))
    if isinstance(after, Defect):
        after = after_experiment(case.confirmation, request, None, after.why)
    return replace(case, confirmation=after)


def apply_cases(results: Results, cases: Iterable[Case]) -> dict[str, dict[str, PlatformResult]]:
    """Update each cause's certainty from its experiments."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for case in cases:
        platforms = changed[case.workload]
        result = platforms[case.platform]
        if case.confirmation.reference_cause is not None:
            _move(platforms, case, case.confirmation.judgement, case.confirmation.reference_cause)
            continue
        causes = case.confirmation.judgement.causes
        platforms[case.platform] = result.replace(causes=(*causes, *_untested(result, case, causes)))
    return changed


def _untested(result: PlatformResult, case: Case, causes: Iterable[Cause] = ()) -> list[Cause]:
    """Return a result's causes that no experiment tested."""
    tested = {cause.code for cause in case.confirmation.base.causes} | {cause.code for cause in causes}
    return [cause for cause in result.causes if cause.code not in tested]


def _move(platforms: dict[str, PlatformResult], case: Case, judgement: Judgement, cause: Cause) -> None:
    """Blame a drift on the reference instead of the case's platform."""
    result, against = platforms[case.platform], f"platform {case.reference}"
    (reason,) = (finding.detail for finding in judgement.findings if finding.check == CHECK)
    cleared = exonerate(result, Doubt("inconclusive", reason), against)
    platforms[case.platform] = cleared.replace(causes=_untested(result, case))
    reference = platforms.get(case.reference or "")
    if reference is None:
        return
    drift = Finding(
        check="learn.bits", outcome="drift", metric="reruns of this training with equal bits", observed=0, limit=1,
        detail=cause.why,
    )  # fmt: skip
    # Two platforms may show the same difference of one reference.
    platforms[case.reference or ""] = reference.replace(
        verdict=worst([reference.verdict, "drift"]),
        findings=(*(finding for finding in reference.findings if finding != drift), drift),
        causes=(*(known for known in reference.causes if known.code != cause.code), cause),
        first_divergence=reference.first_divergence or judgement.first_divergence,
    )
