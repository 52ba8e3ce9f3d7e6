"""Tests of a learning curve to their end: lost, failed and moved runs, budgets, and what each request asks for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import Confirmation
from plumbline.judge.confirm_learn import LearnConfirmation, begin_confirmation
from plumbline.judge.confirm_requests import Request
from plumbline.records import LoadedRecord

from .conftest import make_record, other_kernel
from .kept_verdicts import keep
from .test_causes import failed
from .test_curves import EVALUATION, with_evidence
from .test_learn_trace import CURVE, curve, faulty, named, separated, trace

Answer = Callable[[Request], LoadedRecord | None]
RATES = tuple(1e-3 - 1e-4 * step for step in range(CURVE))


def run(
    reference: LoadedRecord, candidate: LoadedRecord, answer: Answer, budget: int = 6
) -> tuple[LearnConfirmation, list[Request]]:
    state, asked = begin_confirmation(reference, candidate, compare(reference, candidate), budget), []
    assert isinstance(state, LearnConfirmation)
    while (request := state.next()) is not None:
        asked.append(request)
        state = state.absorb(request, answer(request))
    keep([state.spent, state.lost, *asked])
    keep(state.judgement.causes)
    return state, asked


def tried(state: LearnConfirmation) -> str:
    return " // ".join(state.judgement.causes[0].tried)


@pytest.mark.parametrize("parted", [0, 1, 3, 5, 7])
def test_a_trace_is_asked_for_around_the_step_that_differs(parted: int) -> None:
    candidate = curve(parted)
    state, asked = run(curve(), candidate, faulty(candidate, gradient_factor=2.0), budget=8)
    assert named(state) == [("gradient", "confirmed")]
    first = max(parted - 1, 0)
    assert {request.experiment.trace for request in asked} == {first}
    assert [request.experiment.experiment_id for request in asked] == [f"unit-x{n + 1}" for n in range(len(asked))]
    assert asked[0].experiment.steps == asked[1].experiment.steps == min(first + 4, CURVE)
    assert ("counted from its step" in state.judgement.causes[0].why) is (first > 0)


@pytest.mark.parametrize("budget", range(1, 8))
def test_a_budget_ends_the_traces_too(budget: int) -> None:
    candidate = curve(6)
    answer = faulty(candidate, separated(3), update_factor={0: 0.5})
    state, asked = run(curve(), candidate, answer, budget)
    assert len(asked) == min(budget, 6)
    sure = "confirmed" if budget >= 6 else "likely"
    assert named(state) == [("optimizer", sure) if budget >= 4 else ("unattributed", "unattributed")]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("how", ["lost", "lost twice", "failed"])
def test_an_experiment_that_gives_no_record_confirms_nothing(how: str, place: int) -> None:
    candidate, count = curve(5), itertools.count()
    whole = faulty(candidate, gradient_factor=2.0)

    def answer(request: Request) -> LoadedRecord | None:
        at = next(count)
        if how == "failed":
            return failed(whole(request)) if at == place else whole(request)
        return None if at in {place, *([place + 1] if how == "lost twice" else [])} else whole(request)

    state, asked = run(curve(), candidate, answer)
    if how == "lost" or place > 3:
        assert named(state) == [("gradient", "confirmed")]
    elif place < 2:
        assert named(state) == [("unattributed", "unattributed")]
    else:
        assert named(state) == [("gradient", "likely")]
    reason = {"failed": "too large", "lost twice": "no record was returned"}.get(how, "")
    if how != "lost" and place <= 3:
        assert f"could not be run: {reason}" in tried(state)
    assert state.spent <= len(asked)


@pytest.mark.parametrize("place", [2, 3])
def test_an_incomplete_trace_of_a_restored_value_counts_as_lost(place: int) -> None:
    candidate, count = curve(5), itertools.count()
    whole = faulty(candidate, gradient_factor=2.0)

    def answer(request: Request) -> LoadedRecord | None:
        made = whole(request)
        assert made is not None
        return with_evidence(made, trace={"first": 4, "weights": []}) if next(count) in {place, place + 1} else made

    state, _ = run(curve(), candidate, answer)
    assert named(state) == [("gradient", "likely")]
    assert "could not be run: the trace contains no checksums" in tried(state)


def test_a_trace_of_other_bits_than_its_training_is_no_trace() -> None:
    candidate = curve(6)
    whole = faulty(candidate, separated(3), gradient_factor=2.0)
    for side in ("candidate", "reference"):
        count = itertools.count()

        def answer(request: Request, side: str = side, count: Any = count) -> LoadedRecord | None:
            moved = next(count) >= 2 and request.runs_on == side
            return trace(curve(4), request, separated(3)) if moved else whole(request)

        state, _ = run(curve(), candidate, answer, budget=8)
        assert named(state)[0][0] in {"unattributed", "nondeterminism"}
        assert side in tried(state) + state.judgement.causes[0].why


def test_a_reference_that_was_interrupted_is_the_side_that_differs() -> None:
    for resumed, sure in (([4], "confirmed"), ([5], "confirmed"), ([6], "nondeterminism")):
        reference, candidate = curve(resumed_at=resumed), curve(5)
        state, asked = run(reference, candidate, lambda request: trace(curve(5), request))
        assert len(asked) == 2
        if sure == "confirmed":
            assert named(state) == [("optimizer", "confirmed")]
            assert tried(state).endswith(
                "a rerun of the reference without interruption: the curve equals the candidate's"
            )
        else:
            assert named(state) == [("nondeterminism", "confirmed")]
            assert state.judgement.causes[0].why.startswith("the reference does not agree with itself")
            assert "differs before step 8" in state.judgement.causes[0].why


def test_a_candidate_that_was_interrupted_and_repeats_neither_side_is_nondeterminism() -> None:
    candidate = curve(5, resumed_at=[3])
    state, _ = run(curve(), candidate, lambda request: trace(curve(4), request))
    assert named(state) == [("nondeterminism", "confirmed")]
    state, _ = run(curve(), candidate, lambda request: trace(curve(), request))
    assert named(state) == [("optimizer", "confirmed")]
    assert tried(state) == "a rerun without interruption: the curve equals the reference's"


def test_a_rerun_of_a_different_machine_shows_nothing() -> None:
    candidate = curve(5)
    state, asked = run(curve(), candidate, lambda request: trace(curve(4), request, fingerprint=other_kernel()))
    assert named(state) == [("unattributed", "unattributed")]
    assert len(asked) == 1
    assert tried(state) == "an unchanged rerun ran on a different machine: cpu.isa: AVX2 → AVX512"
    state, asked = run(curve(), candidate, lambda request: trace(candidate, request, fingerprint=other_kernel()))
    assert len(asked) == 2


@pytest.mark.parametrize("heals", [True, False])
@pytest.mark.parametrize(("changes", "rung", "code"), [
    ({"dropout": [0.2, 0.1]}, "dropout", "rng"),
    ({"learning_rates": (*RATES[:3], 1e-2, *RATES[4:])}, "schedule", "schedule"),
])  # fmt: skip
def test_a_definition_that_changes_nothing_is_followed_by_traces(
    changes: dict[str, Any], rung: str, code: str, heals: bool
) -> None:
    reference, candidate = curve(learning_rates=RATES), curve(5, **({"learning_rates": RATES} | changes))

    def answer(request: Request) -> LoadedRecord:
        defined = any(replay.rung == rung and replay.step is None for replay in request.experiment.replays)
        if request.runs_on == "reference" or (defined and heals):
            return trace(reference, request)
        return trace(candidate, request, update_factor={1: 0.5})

    state, asked = run(reference, candidate, answer, budget=3)
    assert [replay.rung for replay in asked[1].experiment.replays] == [rung]
    assert asked[1].experiment.trace is None
    assert named(state)[0] == ((code, "confirmed") if heals else ("optimizer", "likely"))
    assert len(asked) == (2 if heals else 3)


@pytest.mark.parametrize(("rerun", "sure"), [("candidate", "confirmed"), ("other", "likely")])
def test_an_evaluation_that_a_rerun_repeats_is_confirmed_beside_a_training(rerun: str, sure: str) -> None:
    def end(**changes: Any) -> list[dict[str, Any]]:
        return [EVALUATION.replace(step=4, **changes).to_json()]

    reference, candidate = curve(evaluations=end()), curve(3, evaluations=end(training_mode=True))
    other = candidate if rerun == "candidate" else curve(3, evaluations=end())
    whole = faulty(other, gradient_factor=2.0)

    def answer(request: Request) -> LoadedRecord | None:
        return trace(reference, request) if request.runs_on == "reference" else whole(request)

    state, _ = run(reference, candidate, answer)
    assert named(state) == [("gradient", "confirmed"), ("evaluation", sure)]


def test_a_curve_is_tested_only_where_it_should_have_equal_bits() -> None:
    candidate = curve(5)
    judgement = compare(curve(), candidate)
    assert isinstance(begin_confirmation(curve(), candidate, judgement, 1), LearnConfirmation)
    other = [finding.replace(outcome="pass") for finding in judgement.findings]
    for left, right, judged, budget in (
        (curve(), candidate, judgement, 0), (curve(), candidate, judgement.replace(findings=other), 6),
        (with_evidence(curve(), learn=None), candidate, judgement, 6), (curve(), curve(), judgement, 6),
        (curve(), with_evidence(candidate, learn=None), judgement, 6),
    ):  # fmt: skip
        assert isinstance(begin_confirmation(left, right, judged, budget), Confirmation)
    probed = make_record(gradient_factor=1.5)
    assert isinstance(begin_confirmation(make_record(), probed, compare(make_record(), probed), 6), Confirmation)
