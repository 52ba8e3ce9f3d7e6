"""Faults alone and in pairs through the experiments: what is named, by how many experiments, and what stays open."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.confirmation import Confirmation, Request
from plumbline.records import LoadedRecord
from tests.said import failures_of, said

from .confirmations import experiment_record
from .conftest import STEPS, Plan, make_record, other_kernel

_records: dict[str, LoadedRecord] = {}


def made(plan: Plan) -> LoadedRecord:
    key = repr(plan)
    if key not in _records:
        _records[key] = make_record(plan)
    return _records[key]


@dataclass(frozen=True)
class Fault:
    """A fault, the code of its cause, and the experiments that remove it."""

    code: str
    changes: dict[str, Any]
    cures: frozenset[str]


def fault(code: str, *cures: str, **changes: Any) -> Fault:
    return Fault(code, changes, frozenset(cures))


RATES = Plan().rates
FAULTS = {
    "order": fault("data.order", "batch", order=[*range(8), *range(23, 7, -1)]),
    "labels": fault("data.labels", "batch", labels=[*Plan().labels[:5], 0, *Plan().labels[6:]]),
    "weights": fault("weights.init", "weights", weights_seed=6),
    "seed": fault("rng", "rng", seed=2),
    "operator": fault("operator", "forward", noise={"layer.norm": 1e-3}),
    "late operator": fault("operator", "forward", noise={"layer.linear@2": 1e-3}),
    "loss": fault("loss", "loss", loss_factor=1.1),
    "gradient": fault("gradient", "gradient", "clipped", gradient_factor=1.5),
    "late gradient": fault("gradient", "gradient", "clipped", gradient_factor_at=3),
    "sign": fault("gradient", "clipped", gradient_sign=-1.0),
    "clip": fault("gradient", "clipped", clip=0.5),
    "update": fault("optimizer", "optimizer", update_factor={2: 1.5}),
    "late update": fault("optimizer", "optimizer", update_factor={4: 1.5}),
    "decay": fault("optimizer", "optimizer", decay=0.5),
    "rates": fault("schedule", "schedule", rates=[*RATES[:3], *(2 * rate for rate in RATES[3:])]),
    "evaluation": fault("evaluation", "evaluation", evaluation_mode=True),
    "kernel": fault("kernel", "fp64", "forward", noise={"layer.linear": 3e-7}),
    "precision": fault(
        "precision", "fp64", "settings", "forward", noise={"layer.linear": 1e-3},
        fingerprint={"mantissa_bits": {"linear": 10}},
    ),
    "format": fault("precision", "settings", dtype="bfloat16"),
}  # fmt: skip


@pytest.fixture
def reference() -> LoadedRecord:
    """Return a record that has measured the bits that its products keep."""
    return make_record(has_windows=False, fingerprint={"mantissa_bits": {"linear": 23}})


def plan_of(*faults: Fault) -> Plan:
    plan = Plan(has_windows=False)
    for each in faults:
        for name, value in each.changes.items():
            old = getattr(plan, name)
            setattr(plan, name, old | value if isinstance(old, dict) else value)
    return plan


def tapped(request: Request) -> tuple[int, ...]:
    """Return the steps at which an experiment records tensors: its last one too."""
    return tuple(sorted({*Plan().tap_steps, request.experiment.steps - 1}))


def curing(*faults: Fault) -> Callable[[Request], LoadedRecord | None]:
    """Answer requests for a candidate whose faults disappear where a cure is restored."""

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return experiment_record(Plan(tap_steps=tapped(request)), request)
        restored = {replay.stage for replay in request.experiment.replays} | {request.experiment.precision or ""}
        plan = plan_of(*(each for each in faults if not each.cures & restored))
        return experiment_record(replace(plan, tap_steps=tapped(request)), request)

    return run


def run(
    reference: LoadedRecord, plan: Plan, answer: Callable[[Request], LoadedRecord | None], budget: int = 8
) -> tuple[Confirmation, list[Request]]:
    candidate = made(plan)
    state, asked = begin(reference, candidate, compare(reference, candidate), budget), []
    while (request := next_request(state)) is not None:
        asked.append(request)
        state = after_experiment(state, request, answer(request))
    return state, asked


def named(state: Confirmation) -> dict[str, str]:
    return {cause.code: cause.sure for cause in state.judgement.causes}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_disappears_is_confirmed(reference: LoadedRecord, name: str) -> None:
    each = FAULTS[name]
    state, asked = run(reference, plan_of(each), curing(each))
    assert named(state) == {each.code: "confirmed"}
    ids = [request.experiment.experiment_id for request in asked]
    assert ids == [f"unit-x{place + 1}" for place in range(len(asked))]
    assert all(1 <= request.experiment.steps <= STEPS for request in asked)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_stays_confirms_nothing_else(reference: LoadedRecord, name: str) -> None:
    plan = plan_of(FAULTS[name])
    state, _ = run(reference, plan, lambda r: experiment_record(plan if r.runs_on == "candidate" else Plan(), r), 12)
    assert {code for code, sure in named(state).items() if sure == "confirmed"} <= {FAULTS[name].code}


PAIRS = [
    ("order", "operator"), ("order", "rates"), ("labels", "late update"), ("weights", "loss"),
    ("seed", "late gradient"), ("operator", "rates"), ("late operator", "loss"), ("loss", "update"),
    ("gradient", "rates"), ("update", "evaluation"), ("kernel", "loss"), ("precision", "rates"),
    ("kernel", "late update"), ("operator", "late update"), ("operator", "evaluation"),
    ("labels", "kernel"), ("decay", "late gradient"), ("precision", "late gradient"),
    ("rates", "late update"),
]  # fmt: skip


@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
def test_no_cause_is_confirmed_that_is_neither_of_two_faults(reference: LoadedRecord, names: tuple[str, str]) -> None:
    faults = [FAULTS[name] for name in names]
    state, asked = run(reference, plan_of(*faults), curing(*faults), budget=12)
    codes = {each.code for each in faults}
    assert {code for code, sure in named(state).items() if sure == "confirmed"} <= codes
    assert named(state)[faults[0].code] == "confirmed"
    assert state.spent == len(asked) <= 12


@pytest.mark.parametrize("budget", range(9))
def test_each_budget_is_spent_on_the_first_cause_first(reference: LoadedRecord, budget: int) -> None:
    faults = [FAULTS["operator"], FAULTS["rates"]]
    state, asked = run(reference, plan_of(*faults), curing(*faults), budget)
    assert len(asked) == min(budget, 5)
    assert named(state)["operator"] == ("confirmed" if budget >= 3 else "likely")
    assert named(state)["schedule"] == ("confirmed" if budget >= 5 else "likely")


def failed(record: LoadedRecord | None) -> LoadedRecord | None:
    if record is None:
        return None
    ended = record.record.replace(exit={"status": "failed", "code": "data", "message": "too large"})
    return LoadedRecord(ended, record.folder, record.arrays)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("name", ["seed", "sign", "precision", "operator"])
def test_an_experiment_that_fails_refutes_nothing_and_the_next_is_run(
    reference: LoadedRecord, name: str, place: int
) -> None:
    each, count = FAULTS[name], itertools.count()
    answer = curing(each)
    state, asked = run(reference, plan_of(each), lambda r: failed(answer(r)) if next(count) == place else answer(r))
    if place >= len(asked):
        assert named(state) == {each.code: "confirmed"}
    if place == 0:
        assert len(asked) == 1
        assert named(state) == {cause.code: "likely" for cause in state.base.causes}
    if place < len(asked) and named(state) != {each.code: "confirmed"}:
        failures = failures_of(line for cause in state.judgement.causes for line in cause.tried)
        assert any(why.startswith("too large") for why in failures)


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1), (1, 2), (0, 2), (1, 3)])
def test_only_the_first_lost_experiment_is_run_again(reference: LoadedRecord, places: tuple[int, ...]) -> None:
    each, count = FAULTS["operator"], itertools.count()
    answer = curing(each)
    state, asked = run(reference, plan_of(each), lambda r: None if next(count) in places else answer(r), budget=3)
    assert len(asked) == (4 if len(places) == 1 else places[1] + 1)
    assert named(state) == {"operator": "confirmed" if len(places) == 1 else "likely"}
    assert state.spent == len(asked)


@pytest.mark.parametrize(
    ("again", "codes"),
    [
        ({"gradient_factor_at": 1}, {"nondeterminism", "data.order"}),
        ({"noise": {"head@6": 0.5}}, {"nondeterminism", "data.order", "schedule"}),
        ({"gradient_factor_at": 4}, {"nondeterminism", "data.order", "schedule"}),
        ({"seed": 3}, {"nondeterminism", "data.order"}),
    ],
)
def test_a_run_that_varies_keeps_only_the_causes_before_it_varies(
    reference: LoadedRecord, again: dict[str, Any], codes: set[str]
) -> None:
    plan = Plan(order=Plan().order[::-1], rates=FAULTS["rates"].changes["rates"])
    state, _ = run(reference, plan, lambda r: experiment_record(replace(plan, **again), r), budget=1)
    assert named(state)["nondeterminism"] == "confirmed"
    assert set(named(state)) == codes


def test_windows_that_do_not_repeat_are_no_cause_beside_a_run_that_varies() -> None:
    reference, plan = (
        make_record(has_windows=True),
        Plan(has_windows=True, repeated=False, labels=FAULTS["labels"].changes["labels"]),
    )
    again = replace(plan, has_windows=False, gradient_factor_at=4)
    state, _ = run(reference, plan, lambda request: experiment_record(again, request), budget=1)
    assert set(named(state)) == {"nondeterminism", "data.labels"}


def test_a_rerun_without_a_probe_shows_no_difference(reference: LoadedRecord) -> None:
    each = FAULTS["loss"]
    answer, count = curing(each), itertools.count()

    def bare(request: Request) -> LoadedRecord | None:
        record = answer(request)
        if next(count) or record is None:
            return record
        changed = record.record.replace(evidence=record.record.evidence.replace(probe=None))
        return LoadedRecord(changed, record.folder, {})

    state, _ = run(reference, plan_of(each), bare)
    assert named(state)["loss"] == "confirmed"


def test_a_pass_and_no_budget_are_no_tests(reference: LoadedRecord) -> None:
    candidate = made(plan_of(FAULTS["loss"]))
    judgement = compare(reference, candidate)
    for budget in (0, -1):
        assert next_request(begin(reference, candidate, judgement, budget)) is None
    for verdict in ("pass", "inconclusive", "invalid"):
        assert next_request(begin(reference, candidate, judgement.replace(verdict=verdict), 8)) is None


def test_rounding_of_explained_kernels_is_no_cause_beside_a_second_fault() -> None:
    reference = make_record()
    plan = replace(plan_of(FAULTS["kernel"], FAULTS["evaluation"]), fingerprint=other_kernel())
    state, asked = run(reference, plan, curing(FAULTS["kernel"], FAULTS["evaluation"]))
    assert named(state) == {"evaluation": "confirmed"}
    assert not any(request.experiment.precision for request in asked)


def test_a_first_cause_that_stays_leaves_the_second_untested(reference: LoadedRecord) -> None:
    plan = plan_of(FAULTS["loss"], FAULTS["rates"])
    state, _ = run(reference, plan, lambda r: experiment_record(plan if r.runs_on == "candidate" else Plan(), r))
    assert list(named(state).items()) == [("loss", "likely"), ("schedule", "likely")]
    assert said(state.judgement.causes[0].tried)
    assert not said(state.judgement.causes[1].tried)
