"""Tests of a learning curve to their end: lost, failed and moved runs, budgets, and what each request asks for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import Confirmation, Request
from plumbline.night.rounds.confirming import absorb, apply_cases, open_cases, wanted
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Cause, Finding
from tests.kept_results import keep
from tests.said import failures_of, said

from .conftest import make_record, other_kernel
from .test_causes import failed
from .test_curves import EVALUATION, with_evidence
from .test_learn_trace import CURVE, curve, faulty, named, separated, trace
from .test_wrong_reference import make_round

Answer = Callable[[Request], LoadedRecord | None]
RATES = tuple(1e-3 - 1e-4 * step for step in range(CURVE))


def run(
    reference: LoadedRecord, candidate: LoadedRecord, answer: Answer, budget: int = 6
) -> tuple[Confirmation, list[Request]]:
    state, asked = Confirmation.begin(reference, candidate, compare(reference, candidate), budget), []
    assert state.window is not None
    while (request := state.next()) is not None:
        asked.append(request)
        state = state.absorb(request, answer(request))
    keep([state.spent, state.lost, *asked])
    keep(state.judgement.causes)
    return state, asked


def tried(state: Confirmation) -> str:
    return " // ".join(said(state.judgement.causes[0].tried))


@pytest.mark.parametrize("parted", [0, 1, 3, 5, 7])
def test_a_trace_is_asked_for_around_the_step_that_differs(parted: int) -> None:
    candidate = curve(parted)
    state, asked = run(curve(), candidate, faulty(candidate, gradient_factor=2.0), budget=8)
    assert named(state) == [("gradient", "confirmed")]
    first = max(parted - 1, 0)
    assert {request.experiment.trace for request in asked} == {first}
    assert [request.experiment.experiment_id for request in asked] == [f"unit-x{n + 1}" for n in range(len(asked))]
    assert asked[0].experiment.steps == asked[1].experiment.steps == min(first + 4, CURVE)
    assert ("curve.counted-from" in repr(state.judgement.causes[0].why)) is (first > 0)


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
        assert any(why.startswith(reason) for why in failures_of(state.judgement.causes[0].tried))
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
        cause = state.reference_cause or state.judgement.causes[0]
        assert cause.code in {"unattributed", "nondeterminism"}
        assert side in " // ".join((*said(cause.tried), said(cause.why)))


def test_a_reference_that_was_interrupted_is_the_side_that_differs() -> None:
    for resumed, code in (([4], "optimizer"), ([5], "optimizer"), ([6], "nondeterminism")):
        reference, candidate = curve(resumed_at=resumed), curve(5)
        state, asked = run(reference, candidate, lambda request: trace(curve(5), request))
        assert len(asked) == 2
        # The candidate has no cause, and no drift: the reference's rerun shows where the difference is.
        assert (named(state), state.judgement.verdict) == ([], "inconclusive")
        cause = state.reference_cause
        assert cause is not None
        assert (cause.code, cause.sure) == (code, "confirmed")
        if code == "optimizer":
            text = "a rerun of the reference without interruption: the curve equals the candidate's"
            assert said(cause.tried)[-1] == text
        else:
            assert said(cause.why).startswith("the reference does not agree with itself")
            assert "differs before step 8" in said(cause.why)


def test_a_cause_in_the_reference_is_told_from_the_candidate_on() -> None:
    rates = (*RATES[:5], 1e-2, *RATES[6:])
    reference, candidate = curve(resumed_at=[5], learning_rates=rates), curve(5, learning_rates=RATES)

    def answer(request: Request) -> LoadedRecord:
        return trace(candidate, request)

    state, _ = run(reference, candidate, answer)
    cause = state.reference_cause
    assert cause is not None
    assert (cause.code, cause.sure) == ("schedule", "confirmed")
    assert (
        said(cause.why) == f"step 5 was taken with a learning rate of 0.01 instead of {RATES[5]}, at a resume at step 5"
    )


@pytest.mark.parametrize("healthy", [True, False])
def test_a_round_moves_the_drift_to_an_interrupted_reference(healthy: bool) -> None:
    def placed(record: LoadedRecord, name: str) -> LoadedRecord:
        return LoadedRecord(record.record.replace(record_id=name, platform=name), record.folder, record.arrays)

    round_ = make_round()
    records = {"aws": placed(curve(resumed_at=[4]), "aws"), "azure": placed(curve(5), "azure")}
    gathered = GatheredRecords({Assignment(name, "w", MAIN): record for name, record in records.items()})
    results = judge_harvest(round_, gathered, {}, {})
    assert [result.verdict for result in results["w"].values()] == ["pass", "drift"]
    if not healthy:  # its drift from its own baseline stays
        own = Finding(check="speed.throughput", outcome="drift", against="baseline old")
        azure = results["w"]["azure"]
        results["w"]["azure"] = azure.replace(findings=(*azure.findings, own))
    cases = open_cases(round_, gathered, {}, results)
    while asked := wanted(cases):
        cases = absorb(cases, {str(each[2].experiment_id): trace(curve(5), each[1]) for each in asked}, {})
    aws, azure = keep(apply_cases(results, cases))["w"].values()
    assert (aws.verdict, [(cause.code, cause.sure) for cause in aws.causes]) == ("drift", [("optimizer", "confirmed")])
    assert [finding.check for finding in aws.findings if finding.outcome == "drift"] == ["learn.bits"]
    assert (aws.first_divergence.stage, aws.first_divergence.step) == ("learn", 5)
    # A second platform that shows the same says it once.
    again = apply_cases({"w": {"aws": aws, "azure": results["w"]["azure"]}}, cases)["w"]["aws"]
    assert (again.findings, again.causes) == (aws.findings, aws.causes)
    # Causes that it had before stay.
    others = tuple(Cause(code=code, sure="likely", why="x") for code in ("data.order", "software"))
    known = aws.replace(causes=others)
    more = apply_cases({"w": {"aws": known, "azure": results["w"]["azure"]}}, cases)["w"]["aws"]
    assert more.causes == (*others, *aws.causes)
    assert (azure.verdict, azure.causes) == ("inconclusive" if healthy else "drift", ())
    (reason,) = (finding for finding in azure.findings if finding.check == "platform.difference")
    assert (reason.outcome, reason.against) == ("inconclusive", "platform aws")
    assert said(reason.detail).startswith("differs from the reference, but the reference is the one that differs: ")


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
    assert Confirmation.begin(curve(), candidate, judgement, 1).window is not None
    other = [finding.replace(outcome="pass") for finding in judgement.findings]
    for left, right, judged, budget in (
        (curve(), candidate, judgement, 0), (curve(), candidate, judgement.replace(findings=other), 6),
        (with_evidence(curve(), learn=None), candidate, judgement, 6), (curve(), curve(), judgement, 6),
        (curve(), with_evidence(candidate, learn=None), judgement, 6),
    ):  # fmt: skip
        assert Confirmation.begin(left, right, judged, budget).window is None
    probed = make_record(gradient_factor=1.5)
    assert Confirmation.begin(make_record(), probed, compare(make_record(), probed), 6).window is None
