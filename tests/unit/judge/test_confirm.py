"""Confirmation: which experiments confirm, refute or keep a cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.confirmation import Request
from plumbline.records import LoadedRecord
from tests.kept_results import keep, kept
from tests.said import said

from .confirmations import confirm, experiment_record, healing, rigid, snapping
from .conftest import Plan, make_record, other_kernel

compare = kept(compare)


def test_a_cause_is_confirmed_when_the_evidence_snaps_back(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    state, asked = confirm(reference, plan, snapping(plan, noise={}))
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == ("operator", "confirmed")
    assert said(cause.tried)[0].startswith("an unchanged rerun")
    assert not asked[0].experiment.replays
    assert asked[1].runs_on == "reference"
    assert asked[1].experiment.captures[0].names == ("layer.norm",)
    sources = {replay.source for replay in asked[2].experiment.replays}
    assert sources == {source.key for source in asked[2].sources}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"noise": {"layer.norm": 1e-3}}, "operator"),
        ({"noise": {"layer.norm": 3e-7}}, "operator"),  # fp64 on both sides refutes the kernel for good
        ({"noise": {"head@6": 0.5}}, "evaluation"),
    ],
)
def test_a_put_back_that_fails_below_equal_bits_discards_no_name(
    reference: LoadedRecord, changes: dict[str, Any], code: str
) -> None:
    plan = Plan(**changes)
    state, asked = confirm(reference, plan, rigid(plan))
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == (code, "likely")
    assert len(said(cause.tried)) == 1 + sum(
        bool(item.experiment.replays or item.experiment.precision) and item.runs_on == "candidate" for item in asked
    )


def test_a_rerun_of_other_bits_is_nondeterminism_and_asks_no_more(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    state, asked = confirm(
        reference, plan, lambda request: experiment_record(Plan(noise={"layer.norm": 2e-3}), request)
    )
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == ("nondeterminism", "confirmed")
    assert len(asked) == 1


def test_a_rerun_in_another_number_of_processes_shows_no_nondeterminism(reference: LoadedRecord) -> None:
    """A fault of one process is not in a rerun that has a single one."""
    portable = {"0/outputs/layer.norm": "f" * 16}
    plan = Plan(noise={"layer.norm": 1e-3}, portable=portable, fingerprint={"num_processes": 2})
    state, asked = confirm(reference, plan, lambda request: experiment_record(Plan(), request))
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure, len(asked)) == ("operator", "likely", 1)
    assert "different machine: num_processes: 2 → 1" in said(cause.tried)[-1]


def test_windows_that_do_not_repeat_themselves_add_no_device_where_the_run_does_not_either() -> None:
    left = make_record(has_windows=True)
    plan = Plan(has_windows=True, repeated=False, gradient_factor=1.001)
    again = replace(plan, gradient_factor=1.002, has_windows=False)  # experiments have no windows
    state, _ = confirm(left, plan, lambda request: experiment_record(again, request))
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("nondeterminism", "confirmed")]
    steady, _ = confirm(
        left,
        Plan(has_windows=True, repeated=False),
        lambda request: experiment_record(Plan(has_windows=False), request),
    )
    assert [cause.code for cause in steady.judgement.causes] == ["device"]


@pytest.mark.parametrize(
    ("place", "in_rerun", "cause"),
    [
        ("0/outputs/layer.norm", "same", ("operator", "confirmed")),
        ("0/gradients/layer.linear.weight", "same", ("gradient", "confirmed")),
        ("0/weights/head.weight", "same", ("optimizer", "confirmed")),
        ("0/outputs/layer.norm", "none", ("operator", "likely")),
        ("0/outputs/layer.norm", "reference", ("nondeterminism", "confirmed")),
    ],
)
def test_a_difference_of_portable_bits_alone_is_looked_for_in_the_windows_of_the_rerun(
    place: str, in_rerun: str, cause: tuple[str, str]
) -> None:
    plan = Plan(has_windows=True, portable={place: "f" * 16}, noise={"layer.linear": 3e-7}, fingerprint=other_kernel())
    again = {"same": plan, "none": replace(plan, has_windows=False), "reference": replace(plan, portable={})}[in_rerun]

    def run(request: Request) -> LoadedRecord:
        return experiment_record(again if request.experiment.portable else replace(plan, has_windows=False), request)

    state, asked = confirm(make_record(has_windows=True), plan, run)
    assert [(each.code, each.sure) for each in state.judgement.causes] == [cause]
    assert asked[0].experiment.portable
    assert not any(request.experiment.portable for request in asked[1:])


def test_a_native_difference_is_tested_without_windows(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    _, asked = confirm(reference, plan, snapping(plan, noise={}))
    assert not any(request.experiment.portable for request in asked)


def test_a_drift_above_the_parting_keeps_its_own_cause(reference: LoadedRecord) -> None:
    order = Plan().order[::-1]
    plan = Plan(order=order, noise={"layer.norm@1": 1e-3})
    other = replace(plan, noise={"layer.norm@1": 2e-3})
    healed = Plan(noise={"layer.norm@1": 2e-3})

    def run(request: Request) -> LoadedRecord:
        return experiment_record(healed if request.experiment.replays else other, request)

    state, _ = confirm(reference, plan, run)
    assert {cause.code for cause in state.judgement.causes} >= {"nondeterminism", "data.order"}


def test_an_experiment_that_cannot_be_run_refutes_nothing(reference: LoadedRecord) -> None:
    plan = Plan(gradient_factor=1.5)
    candidate = make_record(plan)
    state = begin(reference, candidate, compare(reference, candidate), 8)
    while (request := next_request(state)) is not None:
        state = after_experiment(state, request, None, "no worker came online within 60 s")
    keep(state.judgement)
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == ("gradient", "likely")
    assert said(cause.tried)[0].endswith("could not be run: no worker came online within 60 s")


def test_the_experiments_of_two_workloads_with_long_names_are_never_taken_for_each_other(
    reference: LoadedRecord,
) -> None:
    faulty, asked = make_record(Plan(loss_factor=1.01)), []
    for name in ("azure-gpu-bert-base-reviews-0", "azure-gpu-bert-base-reviews-mlm-0"):
        candidate = replace(faulty, record=faulty.record.replace(record_id=f"20261121-020000-abcdef-{name}"))
        asked.append(next_request(begin(reference, candidate, compare(reference, candidate), 8)))
    names = [request.experiment.experiment_id for request in asked if request is not None]
    assert len(set(names)) == 2
    assert all(len(name) <= 63 for name in names)


@pytest.mark.parametrize(("in_fp64", "code"), [({}, "kernel"), ({"layer.linear": 3e-7}, "operator")])
def test_fp64_on_both_sides_tells_a_kernel_from_a_formula(
    reference: LoadedRecord, in_fp64: dict[str, float], code: str
) -> None:
    plan = Plan(noise={"layer.linear": 3e-7})

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference" or request.experiment.replays:
            return experiment_record(Plan(), request)
        exact = request.experiment.precision == "fp64"
        return experiment_record(Plan(noise=in_fp64) if exact else plan, request)

    state, asked = confirm(reference, plan, run, budget=6)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [(code, "confirmed")]
    assert [request.experiment.precision for request in asked[1:3]] == ["fp64", "fp64"]


def test_a_generator_that_is_seeded_within_each_step_is_put_back_at_each(reference: LoadedRecord) -> None:
    plan = Plan(seed=2)

    def run(request: Request) -> LoadedRecord:
        always = any(replay.stage == "rng" and replay.step is None for replay in request.experiment.replays)
        return experiment_record(Plan() if always else plan, request)

    state, asked = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("rng", "confirmed")]
    assert [replay.step for request in asked for replay in request.experiment.replays] == [0, None]


def test_what_varies_but_agrees_at_first_by_chance_is_nondeterminism_alone(reference: LoadedRecord) -> None:
    order = Plan().order
    swapped = [*order[4:8], *order[:4], *order[8:]]
    later = [*swapped[:16], *swapped[20:], *swapped[16:20]]
    state, asked = confirm(
        reference, Plan(order=swapped), lambda request: experiment_record(Plan(order=later), request)
    )
    assert [cause.code for cause in state.judgement.causes] == ["nondeterminism"]
    assert "batch at step 4" in said(state.judgement.causes[0].why)
    assert asked[0].experiment.steps == reference.record.evidence.probe.num_steps


@pytest.mark.parametrize("heals", [True, False])
def test_a_gradient_that_changed_after_its_record_is_told_from_an_update(reference: LoadedRecord, heals: bool) -> None:
    """A flipped sign keeps the norm; the reference's clipped gradients imposed tell it from another update."""
    plan = Plan(gradient_sign=-1.0)
    state, _ = confirm(reference, plan, healing(plan, clipped={"gradient_sign": 1.0} if heals else {}))
    expected = ("gradient", "confirmed") if heals else ("optimizer", "likely")
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [expected]
