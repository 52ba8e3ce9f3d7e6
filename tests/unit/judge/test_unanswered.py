"""A record that does not answer an experiment confirms nothing: of other replays, without probe, steps or taps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Fact
from plumbline.schema.record import RunRecord

from .confirmations import Laboratory, confirm, snapping
from .conftest import Plan, cut_to
from .made_records import Content, compare, learned
from .test_learn import LOGGED, rerun_of


def first_steps(content: Content, count: int) -> None:
    """Keep the first steps of the evidence, and their parts."""
    probe, arrays = content["evidence"]["probe"], content["arrays"]
    places = [place for place, tap in enumerate(probe["taps"]) if tap["step"] < count]
    cut_to(probe, count)
    probe["taps"] = [probe["taps"][place] for place in places]
    arrays["batches"] = {name: values[:count] for name, values in arrays["batches"].items()}
    arrays["sketches"] = {"sketch": arrays["sketches"]["sketch"][places]}


def no_taps(content: Content) -> None:
    content["evidence"]["probe"]["taps"] = []
    content["arrays"]["sketches"] = {"sketch": content["arrays"]["sketches"]["sketch"][:0]}


UNANSWERED = {
    "no probe": lambda c: c["evidence"].update(probe=None),
    "no steps": lambda c: first_steps(c, 0),
    "1 of N steps": lambda c: first_steps(c, 1),
    "no taps": no_taps,
    "no evaluation": lambda c: c["evidence"]["probe"].update(evaluation=None),
    "other replays": lambda c: c["experiment"].update(replays=[{"stage": "loss"}, {"stage": "schedule"}]),
    "other steps": lambda c: c["experiment"].update(steps=c["experiment"]["steps"] + 1),
    "no experiment": lambda c: c.update(experiment=None),
    "no rows": lambda c: c["arrays"].update(rows={}),
}


def broken(record: LoadedRecord | None, change: Any) -> LoadedRecord:
    assert record is not None
    content = record.record.model_dump() | {"arrays": dict(record.arrays)}
    change(content)
    arrays = content.pop("arrays")
    return LoadedRecord(RunRecord.model_validate(content), record.folder, arrays)


def from_the(place: int, answer: Laboratory, change: Any) -> Laboratory:
    """Break each answer from `place` on."""
    count = iter(range(99))
    return lambda request: answer(request) if next(count) < place else broken(answer(request), change)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", UNANSWERED)
def test_a_record_that_does_not_answer_the_experiment_confirms_nothing(
    reference: LoadedRecord, name: str, place: int
) -> None:
    for plan, healed in (
        (Plan(noise={"layer.norm@2": 1e-3}), {"noise": {}}),
        (Plan(gradient_factor=1.5), {"gradient_factor": 1.0}),
    ):
        state, asked = confirm(reference, plan, from_the(place, snapping(plan, **healed), UNANSWERED[name]))
        (cause,) = state.judgement.causes
        assert cause.sure == "likely"
        assert len(asked) > place
        assert any(isinstance(tried, Fact) and tried.code == "experiment.failed" for tried in cause.tried)


def test_an_experiment_without_evidence_is_run_once_more(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    whole = snapping(plan, noise={})
    count = iter(range(99))
    state, asked = confirm(
        reference, plan, lambda r: whole(r) if next(count) != 1 else broken(whole(r), UNANSWERED["no steps"])
    )
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("operator", "confirmed")]
    assert asked[1].experiment.suspect == asked[2].experiment.suspect


@pytest.mark.parametrize("change", [{"experiment": None}, {"replays": [{"stage": "schedule"}]}, {"steps": 1}], ids=str)
def test_a_curve_is_not_confirmed_by_a_record_of_another_experiment(change: Any) -> None:
    healed = learned(0.85, (0.7, 0.5), "a", **LOGGED)
    faulty = learned(0.85, (0.7, 0.6), "b", **(LOGGED | {"dropout": [0.2]}))
    state = begin(healed, faulty, compare(healed, faulty), 6)
    while (request := next_request(state)) is not None:
        answer = rerun_of(healed if request.experiment.replays else faulty, request)
        if request.experiment.replays:
            other = None if "experiment" in change else request.experiment.replace(**change)
            answer = replace(answer, record=answer.record.replace(experiment=other))
        state = after_experiment(state, request, answer)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("rng", "likely")]
