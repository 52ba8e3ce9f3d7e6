"""A fault of the evaluation that a first cause hides is found against the evaluation's definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge.own_evaluation import deviation, may_hide
from plumbline.records import LoadedRecord
from tests.kept_results import kept

from .confirmations import confirm, experiment_record
from .conftest import Plan, make_record

deviation = kept(deviation)
may_hide = kept(may_hide)

EVALUATED = {"head@6": 0.5}


def _is_by_definition(request: Any) -> bool:
    return any(replay.rung == "evaluation" for replay in request.experiment.replays)


def _laboratory(plan: Plan, first: dict[str, Any], *, control: dict[str, float], native: dict[str, float]) -> Any:
    """Answer requests for a candidate whose first cause `first` heals; `control` is the reference's by definition."""

    def run(request: Any) -> LoadedRecord:
        if request.runs_on == "reference":
            return experiment_record(Plan(noise=control) if _is_by_definition(request) else Plan(), request)
        if _is_by_definition(request):
            return experiment_record(replace(plan, noise=native), request)
        return experiment_record(replace(plan, **first) if request.experiment.replays else plan, request)

    return run


@pytest.mark.parametrize(("first", "code"), [({"loss_factor": 1.2}, "loss"), ({"gradient_factor": 1.5}, "gradient")])
@pytest.mark.parametrize("is_faulty", [True, False])
def test_an_evaluation_that_deviates_at_the_same_weights_is_a_second_cause(
    reference: LoadedRecord, first: dict[str, Any], code: str, is_faulty: bool
) -> None:
    plan = Plan(**first, noise=EVALUATED if is_faulty else {})
    healed = {name: getattr(Plan(), name) for name in first}
    state, asked = confirm(reference, plan, _laboratory(plan, healed, control={}, native={}))
    expected = [(code, "confirmed"), ("evaluation", "confirmed")][: 2 if is_faulty else 1]
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == expected
    assert any(item.runs_on == "reference" and _is_by_definition(item) for item in asked) is is_faulty
    assert state.spent == len(asked)


def test_a_deviation_that_the_reference_shows_too_is_no_fault(reference: LoadedRecord) -> None:
    plan = Plan(gradient_factor=1.5, noise=EVALUATED)
    laboratory = _laboratory(plan, {"gradient_factor": 1.0}, control={"head@6": 0.25}, native={})
    state, asked = confirm(reference, plan, laboratory)
    assert [cause.code for cause in state.judgement.causes] == ["gradient"]
    assert [item.runs_on for item in asked if _is_by_definition(item)] == ["candidate", "reference"]


def test_the_budget_bounds_these_experiments_too(reference: LoadedRecord) -> None:
    plan = Plan(gradient_factor=1.5, noise=EVALUATED)
    laboratory = _laboratory(plan, {"gradient_factor": 1.0}, control={}, native={})
    for budget in range(1, 6):
        state, asked = confirm(reference, plan, laboratory, budget=budget)
        assert len(asked) <= budget
        codes = [cause.code for cause in state.judgement.causes]
        assert codes == (["gradient", "evaluation"] if budget == 5 else ["gradient"])


def test_a_lost_run_by_definition_names_nothing(reference: LoadedRecord) -> None:
    plan = Plan(gradient_factor=1.5, noise=EVALUATED)
    laboratory = _laboratory(plan, {"gradient_factor": 1.0}, control={}, native={})
    state, asked = confirm(reference, plan, lambda item: None if _is_by_definition(item) else laboratory(item))
    assert [cause.code for cause in state.judgement.causes] == ["gradient"]
    assert sum(_is_by_definition(item) for item in asked) == 1


def test_causes_that_reach_the_evaluations_rows_are_not_followed(reference: LoadedRecord) -> None:
    """A loader's fault, active dropout or a chance difference changes the run's own evaluation as well."""
    candidate = make_record(gradient_factor=1.5, noise=EVALUATED)
    assert may_hide(reference, candidate, ["gradient"])
    for code in ("data.content", "data.labels", "tokenization", "rng", "nondeterminism", "evaluation", "unattributed"):
        assert not may_hide(reference, candidate, ["gradient", code])
    assert not may_hide(reference, make_record(), ["gradient"])
    assert not may_hide(reference, candidate, [])


def _with_evaluation(**changes: Any) -> LoadedRecord:
    made = make_record()
    probe = made.record.evidence.probe
    assert probe is not None
    assert probe.evaluation is not None
    evaluation = probe.evaluation.to_json() | changes
    evidence = made.record.evidence.replace(probe=probe.replace(evaluation=evaluation).to_json())
    return LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)


@pytest.mark.parametrize(
    ("changes", "codes", "deviates"),
    [
        ({}, ["operator"], False),
        ({"predictions_sha256": "f" * 64}, ["loss"], True),
        ({"accuracy": 0.25}, ["loss"], True),
        ({"rows_sha256": "f" * 64}, ["loss"], True),
        ({"loss": 9.0}, ["operator"], True),
        ({"loss": 9.0}, ["operator", "loss"], False),  # the model's loss function, which the evaluation uses too
        ({"loss": None}, ["operator"], True),
    ],
)
def test_the_loss_counts_only_if_no_cause_changes_its_function(
    reference: LoadedRecord, changes: dict[str, Any], codes: list[Any], deviates: bool
) -> None:
    found = deviation(_with_evaluation(**changes), reference, codes)
    assert found is not None
    assert bool(found) is deviates


@pytest.mark.parametrize(("size", "deviates"), [(1e-7, False), (1e-3, True)])
def test_logits_deviate_beyond_rounding_only(reference: LoadedRecord, size: float, deviates: bool) -> None:
    found = deviation(make_record(noise={"head@6": size}), reference, ["operator"])
    assert found is not None
    assert bool(found) is deviates


def test_different_weights_say_nothing(reference: LoadedRecord) -> None:
    assert deviation(make_record(update_factor={1: 2.0}, noise=EVALUATED), reference, ["operator"]) is None
