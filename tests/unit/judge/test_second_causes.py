"""A second cause that the first one hides, precedes or outlasts: which experiments find and confirm it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge.confirmation import Request
from plumbline.records import LoadedRecord

from .confirmations import confirm, experiment_record, healing
from .conftest import Plan


def test_two_causes_are_confirmed_one_after_the_other(reference: LoadedRecord) -> None:
    rates = [rate * 2 for rate in Plan().rates]
    plan = Plan(rates=rates)
    plan.labels[3] = 1 - plan.labels[3]
    answer = healing(plan, batch={"labels": Plan().labels}, schedule={"rates": Plan().rates})
    state, asked = confirm(reference, plan, answer)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [
        ("data.labels", "confirmed"),
        ("schedule", "confirmed"),
    ]
    assert {replay.stage for replay in asked[-1].experiment.replays} == {"batch", "schedule"}


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ({"order": Plan().order[::-1]}, {"noise": {"head@6": 0.5}}, "evaluation"),
        ({"rates": [rate * 2 for rate in Plan().rates]}, {"noise": {"head@6": 0.5}}, "evaluation"),
        ({"seed": 2}, {"noise": {"head@6": 0.5}}, "evaluation"),
        ({"seed": 2}, {"gradient_factor_at": 5}, "gradient"),
        ({"order": Plan().order[::-1]}, {"gradient_factor_at": 5}, "gradient"),
    ],
)
def test_a_second_cause_below_or_after_restored_batches_rates_and_generators_is_named(
    reference: LoadedRecord, first: dict[str, Any], second: dict[str, Any], code: str
) -> None:
    """Their values of every step are known: the experiments run the whole probe, with its evaluation."""
    plan = Plan(**first, **second)
    healed = {"order": Plan().order, "rates": Plan().rates, "seed": Plan().seed}
    undone: dict[str, Any] = {"noise": {}, "gradient_factor_at": None}
    cures = dict.fromkeys(("batch", "schedule", "rng"), healed) | dict.fromkeys(("evaluation", "gradient"), undone)
    state, _ = confirm(reference, plan, healing(plan, **cures))
    assert [(cause.code, cause.sure) for cause in state.judgement.causes][1:] == [(code, "confirmed")]


def test_a_loss_that_shows_late_is_not_put_down_to_its_gradients(reference: LoadedRecord) -> None:
    plan = Plan(loss_factor=0.95, loss_shows_from=2)
    state, _ = confirm(reference, plan, healing(plan, loss={"loss_factor": 1.0}))
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("loss", "confirmed")]
    # The first step whose gradients it changes.
    assert state.judgement.first_divergence.step == 0


def test_a_gradient_that_stays_off_once_the_loss_is_put_back_is_a_cause_of_its_own(reference: LoadedRecord) -> None:
    plan = Plan(loss_factor=0.95, loss_shows_from=2, gradient_factor=1.5)
    answer = healing(plan, loss={"loss_factor": 1.0}, gradient={"gradient_factor": 1.0})
    state, _ = confirm(reference, plan, answer)
    assert {(cause.code, cause.sure) for cause in state.judgement.causes} == {
        ("loss", "confirmed"),
        ("gradient", "confirmed"),
    }


@pytest.mark.parametrize(("size", "codes"), [(1e-7, ["gradient"]), (1e-3, ["gradient", "operator"])])
def test_code_for_a_gradient_that_also_rounds_an_output_is_one_cause(
    reference: LoadedRecord, size: float, codes: list[str]
) -> None:
    plan = Plan(gradient_factor_at=1, noise={"layer.norm@2": size})
    answer = healing(plan, gradient={"gradient_factor_at": None}, forward={"noise": {}})
    state, _ = confirm(reference, plan, answer)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [(code, "confirmed") for code in codes]


def test_a_cause_that_only_fp64_left_over_is_tested_in_fp64(reference: LoadedRecord) -> None:
    """The reference's record in fp64 is there already: one more experiment settles the second cause."""
    plan = Plan(noise={"layer.linear": 1e-3, "head@6": 0.5})

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference" or any(replay.stage == "evaluation" for replay in request.experiment.replays):
            return experiment_record(Plan(), request)
        exact = Plan(noise={"head@6": 0.5}) if request.experiment.precision == "fp64" else plan
        return experiment_record(exact, request)

    state, asked = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [
        ("precision", "confirmed"),
        ("evaluation", "confirmed"),
    ]
    assert asked[-1].experiment.precision == "fp64"
    assert [replay.stage for replay in asked[-1].experiment.replays] == ["evaluation"]


LATER: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"rates": [*Plan().rates[:3], *(2 * rate for rate in Plan().rates[3:])]}, "schedule"),
    "labels": ({"labels": [*Plan().labels[:12], 1, *Plan().labels[13:]]}, "data.labels"),
    "evaluation": ({"evaluation_mode": True, "noise": {"layer.norm": 1e-3, "head@6": 0.5}}, "evaluation"),
}


@pytest.mark.parametrize(
    ("name", "heals"), [(name, heals) for name in LATER for heals in (True, False) if heals or name != "labels"]
)
def test_a_cause_that_shows_later_than_the_first_ones_capture_reaches_is_confirmed_too(
    reference: LoadedRecord, name: str, heals: bool
) -> None:
    changes, code = LATER[name]
    plan = Plan(**({"noise": {"layer.norm": 1e-3}} | changes))
    rung = {"schedule": "schedule", "data.labels": "batch", "evaluation": "evaluation"}[code]

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return experiment_record(Plan(), request)
        imposed = {replay.step for replay in request.experiment.replays if replay.stage == "forward"}
        healed = plan
        if imposed >= {*range(min(request.experiment.steps, 6))}:
            healed = replace(healed, noise={key: size for key, size in plan.noise.items() if "@" in key})
        if heals and rung in {replay.stage for replay in request.experiment.replays}:
            fixed = {"noise": {key: size for key, size in healed.noise.items() if "@" not in key}}
            fixed = fixed if code == "evaluation" else {key: getattr(Plan(), key) for key in changes}
            healed = replace(healed, evaluation_mode=False, **fixed)
        return experiment_record(healed, request)

    state, asked = confirm(reference, plan, run, budget=6)
    causes = {cause.code: cause.sure for cause in state.judgement.causes}
    assert causes["operator"] == "confirmed"
    assert (causes.get(code) == "confirmed") is heals
    again = [item for item in asked if item.runs_on == "reference"][1]
    assert {capture.step for capture in again.experiment.captures} == set(range(again.experiment.steps))


def test_a_wider_capture_that_fails_leaves_the_second_cause_likely(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3}, rates=LATER["schedule"][0]["rates"])

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference" and len(request.experiment.captures) > 2:
            record = experiment_record(Plan(), request)
            failed = record.record.replace(exit={"status": "failed", "code": "data", "message": "too large"})
            return LoadedRecord(failed, record.folder, record.arrays)
        imposed = request.experiment.replays or request.runs_on == "reference"
        return experiment_record(replace(plan, noise={}) if imposed else plan, request)

    state, asked = confirm(reference, plan, run)
    assert {cause.code: cause.sure for cause in state.judgement.causes} == {
        "operator": "confirmed",
        "schedule": "likely",
    }
    assert len(asked) == 4
