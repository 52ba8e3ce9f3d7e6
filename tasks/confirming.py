"""Second looks, each through dispatch: the rerun of a drop in speed, and the experiments that make a cause sure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from plumbline.bundles import publish_bundle
from plumbline.dispatch import Limits
from plumbline.rounds import Harvest, Round, reruns_needed
from plumbline.rounds.bundling import write_bundle
from plumbline.rounds.confirming import absorb, apply_cases, open_cases, wanted
from plumbline.stores import open_store
from tasks.dispatch import dispatch
from tasks.gathering import gather_records
from tasks.judging import Judged, judge

__all__ = ["confirm_causes", "confirm_speed"]


def confirm_speed(this: Round, found: Harvest, judged: Judged, folder: Path) -> tuple[Harvest, Judged]:
    """Measure once more what was too slow, and judge again with both measurements."""
    reruns = reruns_needed(judged.results)
    if not reruns:
        return found, judged
    results = dispatch(this, reruns, Limits())
    both = found.plus(gather_records(this, results, folder))
    return both, judge(this, both, folder)


def confirm_causes(this: Round, found: Harvest, judged: Judged, folder: Path) -> Judged:
    """Run experiments, the next one of every open case at once, until each case is closed or its budget spent."""
    cases = open_cases(this, found, judged.baselines, judged.results)
    known = {record.record.record_id: record for record in found.records.values()}
    known |= {record.record.record_id: record for lot in judged.baselines.values() for record in lot.values()}
    while any(case.confirmation.next() is not None for case in cases):
        asked = wanted(cases)
        for _, request, assignment in asked:
            bundle = write_bundle(request, known, folder / "experiments" / request.experiment.experiment_id)
            publish_bundle(open_store(this.suite.platforms[assignment.platform].outbox), bundle, request.experiment)
        results = dispatch(this, [assignment for _, _, assignment in asked], Limits()) if asked else {}
        came = gather_records(this, results, folder)
        answers = {str(one.experiment_id): record for one, record in came.records.items()}
        lost = {str(one.experiment_id): absence.why for one, absence in came.absent.items()}
        known |= {record.record.record_id: record for record in came.records.values()}
        cases = absorb(cases, answers, lost)
    return replace(judged, results=apply_cases(judged.results, cases))
