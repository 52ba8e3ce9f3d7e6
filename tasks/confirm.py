"""Confirmation of drift by dispatched reruns, A/B tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from plumbline.data.stores import open_store
from plumbline.judge.confirm import next_request
from plumbline.night.experiments.build import write_bundle
from plumbline.night.experiments.transport import publish_bundle
from plumbline.night.rounds import Assignment, Round
from plumbline.night.rounds.confirming import Wanted, absorb, apply_cases, open_cases, wanted
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import reruns_needed
from plumbline.night.rounds.nights import limits_of, night_abs, night_reruns
from plumbline.night.rounds.row_places import placed_results
from plumbline.records import LoadedRecord
from plumbline.schema.errors import PlumblineError
from plumbline.tasks.dispatch import dispatch_trainings, gather_records
from plumbline.tasks.judge import Judged, judge_records
from plumbline.tasks.machines import Machines


def confirm_throughput(
    round_: Round, gathered: GatheredRecords, judged: Judged, folder: Path, machines: Machines
) -> tuple[GatheredRecords, Judged]:
    """Rerun slow trainings, and judge again with both measurements."""
    asked = night_reruns(judged.nights, round_.suite.dispatch.reruns)
    reruns = tuple(dict.fromkeys((*reruns_needed(judged.results), *asked)))
    if not reruns:
        return gathered, judged
    with machines:
        results = dispatch_trainings(round_, reruns, machines)
    both = gathered.plus(gather_records(round_, results, folder))
    return both, judge_records(round_, both, folder)


def confirm_software(
    round_: Round, gathered: GatheredRecords, judged: Judged, folder: Path, machines: Machines
) -> tuple[GatheredRecords, Judged]:
    """Run an A/B test where a regression persists, and judge again."""
    asked = night_abs(judged.nights, limits_of(round_.suite))
    if not asked:
        return gathered, judged
    with machines:
        results = dispatch_trainings(round_, asked, machines)
    both = gathered.plus(gather_records(round_, results, folder))
    return both, judge_records(round_, both, folder)


def confirm_causes(
    round_: Round, gathered: GatheredRecords, judged: Judged, folder: Path, machines: Machines
) -> tuple[GatheredRecords, Judged]:
    """Run the experiments of all unresolved drifts within their budgets.

    The first result has the experiments' records as well.
    """
    tried = gathered
    cases = open_cases(round_, gathered, judged.baselines, judged.results)
    lots = (gathered.records.values(), *(lot.values() for lot in judged.baselines.values())) if cases else ()
    known = {record.record.record_id: record for lot in lots for record in lot}
    with machines:  # a platform's next experiment follows at once
        while any(next_request(case.confirmation) is not None for case in cases):
            ready, lost = _sent(round_, wanted(cases), known, folder)
            results = dispatch_trainings(round_, ready, machines) if ready else {}
            came = gather_records(round_, results, folder)
            tried = tried.plus(came)
            answers = {str(assignment.experiment_id): record for assignment, record in came.records.items()}
            lost |= {str(assignment.experiment_id): absence.why for assignment, absence in came.absent.items()}
            known |= {record.record.record_id: record for record in came.records.values()}
            cases = absorb(cases, answers, lost)
    confirmed = apply_cases(judged.results, cases)
    return tried, replace(judged, results=placed_results(round_, confirmed, gathered, judged.baselines))


def _sent(
    round_: Round, asked: Sequence[Wanted], known: Mapping[str, LoadedRecord], folder: Path
) -> tuple[list[Assignment], dict[str, str]]:
    """Upload experiment bundles; return the experiments sent, and reasons of failures.

    A failed transfer does not change the verdict: the cause keeps its certainty.
    """
    ready, lost = [], {}
    for _, request, assignment in asked:
        name = request.experiment.experiment_id
        try:
            bundle = write_bundle(request, known, folder / "experiments" / name)
            publish_bundle(open_store(round_.suite.platforms[assignment.platform].outbox), bundle, request.experiment)
        except PlumblineError as error:
            lost[name] = str(error)
        else:
            ready.append(assignment)
    return ready, lost
