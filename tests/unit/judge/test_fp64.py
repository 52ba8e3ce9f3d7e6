"""Two fp64 runs tell rounding from the trace of a formula that shows in a later step."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.intervention import Intervention
from plumbline.judge.pair import Pair
from plumbline.judge.restored import check_restored
from plumbline.judge.rungs.loss import loss
from plumbline.records import LoadedRecord

from .confirmations import confirm, experiment_record, healing
from .conftest import Plan, make_record, with_log
from .made_records import edit, experiment, with_evidence

CauseList = list[tuple[str, str]]


def causes(state: Any) -> CauseList:
    return [(cause.code, cause.sure) for cause in state.judgement.causes]


@pytest.mark.parametrize(
    ("in_fp64", "expected"),
    [({1: 1.001}, [("optimizer", "confirmed")]), ({}, [("kernel", "confirmed")])],
    ids=["the formula shows in the second update", "rounding alone"],
)
def test_rounding_of_an_update_whose_formula_differs_later_is_no_kernel(
    reference: LoadedRecord, in_fp64: dict[int, float], expected: CauseList
) -> None:
    """The difference stays below every limit of fp32, and the steps in between have no sketches."""
    plan = Plan(update_factor={0: 1.0005, 1: 1.001})

    def run(request: Any) -> LoadedRecord:
        if request.runs_on == "reference" or request.experiment.replays:
            return experiment_record(Plan(), request)
        exact = request.experiment.precision == "fp64"
        return experiment_record(Plan(update_factor=in_fp64) if exact else plan, request)

    assert [cause.code for cause in compare(reference, make_record(plan)).causes] == ["kernel"]
    state, _ = confirm(reference, plan, run)
    assert causes(state) == expected


def test_what_fp64_does_not_reach_wholly_keeps_the_limits_of_the_spec(reference: LoadedRecord) -> None:
    """An operation that computes in fp32 also within fp64 leaves rounding in every later step."""
    plan = Plan(noise={"layer.linear": 1e-3})

    def run(request: Any) -> LoadedRecord:
        exact = request.experiment.precision == "fp64" and request.runs_on == "candidate"
        left = Plan(noise={"layer.linear": 3e-6}) if exact else plan
        return experiment_record(Plan() if request.runs_on == "reference" else left, request)

    state, _ = confirm(reference, plan, run)
    assert causes(state) == [("precision", "confirmed")]


@pytest.mark.parametrize("is_noise", [True, False])
def test_a_tensor_that_is_rounding_only_stays_so_in_experiments_of_fp64(
    reference: LoadedRecord, is_noise: bool
) -> None:
    after = make_record()
    probe = after.record.evidence.probe
    assert probe is not None
    place = next(i for i, tap in enumerate(probe.taps) if (tap.stage, tap.name) == ("gradient", "head.weight"))
    taps = [tap.to_json() for tap in probe.taps]
    taps[place] |= {"sha256": "f" * 64}
    after.arrays["sketches"]["sketch"][place] *= -1
    marks = ("f" * 16, *probe.gradients[1:])
    after = edit(with_evidence(after, probe=probe.replace(taps=taps, gradients=marks).to_json()), experiment())
    off = loss(Pair(reference, make_record(loss_factor=1.1)), 0)
    assert off is not None
    noise = frozenset({("gradient", "head.weight")}) if is_noise else frozenset()
    outcome = check_restored(
        Pair(reference, after, noise=noise, scale=0.01), after, mismatch=off, known=frozenset(),
        ways=(Intervention("the loss by its definition", 2, by_definition=True),),
    )  # fmt: skip
    assert (outcome.left == ()) is is_noise


def test_a_hidden_difference_is_no_nondeterminism_after_an_equal_rerun(reference: LoadedRecord) -> None:
    plan = Plan(weights_seed=6, noise={"layer.norm": 1e-6})
    answer = healing(plan, weights={"weights_seed": Plan().weights_seed}, forward={"noise": {}})
    state, _ = confirm(reference, plan, answer)
    assert causes(state) == [("weights.init", "confirmed"), ("operator", "confirmed")]


def with_losses(factors: dict[int, float], **changes: Any) -> LoadedRecord:
    """Return a record whose losses are off by these factors, with equal gradients."""
    return with_log(make_record(**changes), partial(_scale_losses, factors))


def _scale_losses(factors: dict[int, float], log: dict[str, Any]) -> None:
    log["losses"] = [loss * factors.get(step, 1.0) for step, loss in enumerate(log["losses"])]


LATE = {0: 1 + 5e-7, 1: 1 + 2e-5}


@pytest.mark.parametrize(
    ("factors", "changes", "code"),
    [
        (LATE, {"has_windows": True}, "precision"),
        (LATE, {"has_windows": False}, "loss"),
        ({0: 1 + 5e-7, 4: 1 + 2e-5}, {"has_windows": True}, "loss"),  # beyond the portable windows
        ({0: 1 + 5e-7}, {"has_windows": True}, "kernel"),
        ({0: 1.1}, {"has_windows": True}, "loss"),  # more than the rounding of any format
    ],
)
def test_a_loss_that_is_off_at_a_later_step_is_one_cause(
    factors: dict[int, float], changes: dict[str, Any], code: str
) -> None:
    """Small logits hide fewer bits at the first steps: there the loss differs by rounding."""
    judgement = compare(make_record(**changes), with_losses(factors, **changes))
    assert [cause.code for cause in judgement.causes] == [code]


@pytest.mark.parametrize(("in_fp64", "code"), [({}, "precision"), (LATE, "loss")])
def test_fp64_on_both_sides_tells_a_loss_in_fewer_bits_from_a_formula(in_fp64: dict[int, float], code: str) -> None:
    reference, candidate = make_record(has_windows=True), with_losses(LATE, has_windows=True)

    def record(factors: dict[int, float], request: Any) -> LoadedRecord:
        return with_log(experiment_record(Plan(), request), partial(_scale_losses, factors))

    def run(request: Any) -> LoadedRecord:
        by_definition = any(replay.stage == "loss" for replay in request.experiment.replays)
        if request.runs_on == "reference" or by_definition:
            return record({}, request)
        return record(in_fp64 if request.experiment.precision == "fp64" else LATE, request)

    state = begin(reference, candidate, compare(reference, candidate), 8)
    while (request := next_request(state)) is not None:
        state = after_experiment(state, request, run(request))
    assert causes(state) == [(code, "confirmed")]
