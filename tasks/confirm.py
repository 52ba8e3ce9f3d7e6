"""Second looks, each through dispatch: the rerun of a drop in speed, and the experiments that make a cause sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from plumbline.dispatch import Limits
from plumbline.errors import PlumblineError
from plumbline.experiments.build import write_bundle
from plumbline.experiments.transport import publish_bundle
from plumbline.records import LoadedRecord
from plumbline.rounds import Assignment, Round
from plumbline.rounds.confirming import Wanted, absorb, apply_cases, open_cases, wanted
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.judging import reruns_needed
from plumbline.rounds.nights import night_reruns
from plumbline.stores import open_store
from tasks.dispatch import dispatch
from tasks.gather import gather_records
from tasks.judge import Judged, judge

__all__ = ["confirm_causes", "confirm_throughput"]


def confirm_throughput(
    round_: Round, found: GatheredRecords, judged: Judged, folder: Path
) -> tuple[GatheredRecords, Judged]:
    """Measure once more what was too slow, and judge again with both measurements."""
    reruns = tuple(dict.fromkeys((*reruns_needed(judged.results), *night_reruns(judged.nights))))
    if not reruns:
        return found, judged
    results = dispatch(round_, reruns, Limits())
    both = found.plus(gather_records(round_, results, folder))
    return both, judge(round_, both, folder)


def confirm_causes(round_: Round, found: GatheredRecords, judged: Judged, folder: Path) -> Judged:
    """Run experiments, the next one of every open case at once, until each case is closed or its budget spent."""
    cases = open_cases(round_, found, judged.baselines, judged.results)
    known = {record.record.record_id: record for record in found.records.values()}
    known |= {record.record.record_id: record for lot in judged.baselines.values() for record in lot.values()}
    while any(case.confirmation.next() is not None for case in cases):
        ready, lost = _sent(round_, wanted(cases), known, folder)
        results = dispatch(round_, ready, Limits()) if ready else {}
        came = gather_records(round_, results, folder)
        answers = {str(one.experiment_id): record for one, record in came.records.items()}
        lost |= {str(one.experiment_id): absence.why for one, absence in came.absent.items()}
        known |= {record.record.record_id: record for record in came.records.values()}
        cases = absorb(cases, answers, lost)
    return replace(judged, results=apply_cases(judged.results, cases))


def _sent(
    round_: Round, asked: Sequence[Wanted], known: Mapping[str, LoadedRecord], folder: Path
) -> tuple[list[Assignment], dict[str, str]]:
    """The experiments whose bundles have reached their platform; why the others have not.

    A drift that was judged is not lost because an outbox takes no bundle: its cause stays as likely as it was.
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
