"""Confirmations with made records: each request is answered by a laboratory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plumbline.judge import compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.confirmation import Confirmation, Request
from plumbline.records import LoadedRecord
from plumbline.schema.step_log import COLUMNS
from tests.kept_results import keep, kept

from .conftest import Plan, cut_to, make_record

__all__ = ["Laboratory", "confirm", "experiment_record", "healing", "rigid", "snapping"]

compare = kept(compare)

Laboratory = Callable[[Request], LoadedRecord | None]


def experiment_record(plan: Plan, request: Request) -> LoadedRecord:
    """Return an experiment's record: first steps; the last and captured ones are sketched as well."""
    steps = request.experiment.steps
    tapped = {0, 2, steps - 1, *(capture.step for capture in request.experiment.captures)}
    whole = make_record(replace(plan, tap_steps=tuple(sorted(tapped))))
    probe = whole.record.evidence.probe
    assert probe is not None
    assert probe.evaluation is not None
    kept = [place for place, tap in enumerate(probe.taps) if tap.step < steps]
    log = probe.model_dump()
    cut_to(log, steps)
    short = probe.replace(
        **{name: log[name] for name in (*COLUMNS.values(), "batches", "weights", "generators")},
        taps=[probe.taps[place].to_json() for place in kept],
        evaluation=probe.evaluation.replace(step=steps).to_json(),
    )
    record = whole.record.replace(
        record_id=request.experiment.experiment_id,
        experiment=request.experiment.to_json(),
        evidence=whole.record.evidence.replace(probe=short.to_json()),
    )
    arrays = dict(whole.arrays)
    arrays["sketches"] = {"sketch": whole.arrays["sketches"]["sketch"][kept]}
    arrays["batches"] = {name: array[:steps] for name, array in whole.arrays["batches"].items()}
    return LoadedRecord(record, whole.folder, arrays)


def confirm(
    reference: LoadedRecord, plan: Plan, laboratory: Laboratory, budget: int = 8
) -> tuple[Confirmation, list[Request]]:
    candidate = make_record(plan)
    state = begin(reference, candidate, compare(reference, candidate), budget)
    asked = []
    while (request := next_request(state)) is not None:
        asked.append(keep(request))
        state = after_experiment(state, request, laboratory(request))
    keep(state.judgement)
    return state, asked


def snapping(plan: Plan, **healed: Any) -> Laboratory:
    """Answer requests so that restored values remove the difference."""

    def run(request: Request) -> LoadedRecord:
        faulty = request.runs_on == "candidate" and not request.experiment.replays
        return experiment_record(plan if faulty else replace(plan, **healed), request)

    return run


def healing(plan: Plan, **cures: dict[str, Any]) -> Laboratory:
    """Answer as the candidate, with the changes of each rung whose values are restored."""

    def run(request: Request) -> LoadedRecord:
        restored = {replay.stage for replay in request.experiment.replays}
        changes = {name: value for rung in cures if rung in restored for name, value in cures[rung].items()}
        return experiment_record(Plan() if request.runs_on == "reference" else replace(plan, **changes), request)

    return run


def rigid(plan: Plan) -> Laboratory:
    """Answer requests so that no restored value has an effect."""
    return lambda request: experiment_record(plan if request.runs_on == "candidate" else Plan(), request)
