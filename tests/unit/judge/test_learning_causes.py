"""Tests of a learning curve to their end: interrupted and moved runs, restored definitions, second causes."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import begin
from plumbline.judge.confirmation import Request
from plumbline.night.rounds.confirming import absorb, apply_cases, open_cases, wanted
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Cause, Finding
from tests.said import said

from .conftest import make_record, other_kernel
from .made_records import with_evidence
from .test_curve_reruns import CURVE, at_five, confirm, curve, named, repeating, rerun, tried
from .test_curves import EVALUATION
from .test_wrong_reference import make_round

RATES = tuple(1e-3 - 1e-4 * step for step in range(CURVE))


def test_a_reference_that_was_interrupted_is_the_side_that_differs() -> None:
    for resumed, code in (([4], "optimizer"), ([5], "optimizer"), ([6], "nondeterminism")):
        reference, candidate = curve(resumed_at=resumed), curve(5)
        state, asked = confirm(reference, candidate, lambda request: rerun(curve(5), request))
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
        return rerun(candidate, request)

    state, _ = confirm(reference, candidate, answer)
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
    results = judge_harvest(round_, gathered, {}, {}, {})
    assert [result.verdict for result in results["w"].values()] == ["pass", "drift"]
    if not healthy:  # its drift from its own baseline stays
        own = Finding(check="speed.throughput", outcome="drift", against="baseline old")
        azure = results["w"]["azure"]
        results["w"]["azure"] = azure.replace(findings=(*azure.findings, own))
    cases = open_cases(round_, gathered, {}, results)
    while asked := wanted(cases):
        cases = absorb(cases, {str(each[2].experiment_id): rerun(curve(5), each[1]) for each in asked}, {})
    aws, azure = apply_cases(results, cases)["w"].values()
    assert (aws.verdict, [(cause.code, cause.sure) for cause in aws.causes]) == ("drift", [("optimizer", "confirmed")])
    assert [finding.check for finding in aws.findings if finding.outcome == "drift"] == ["learn.bits"]
    assert (aws.first_divergence.part, aws.first_divergence.step) == ("learn", 5)
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
    state, _ = confirm(curve(), candidate, lambda request: rerun(curve(4), request))
    assert named(state) == [("nondeterminism", "confirmed")]
    state, _ = confirm(curve(), candidate, lambda request: rerun(curve(), request))
    assert named(state) == [("optimizer", "confirmed")]
    assert tried(state) == ("a rerun without interruption: the curve equals the reference's",)


def test_a_rerun_of_a_different_machine_shows_nothing() -> None:
    candidate = curve(5)
    state, asked = confirm(curve(), candidate, lambda request: rerun(curve(4), request, fingerprint=other_kernel()))
    assert named(state) == [("unattributed", "unattributed")]
    assert len(asked) == 1
    assert tried(state) == ("an unchanged rerun ran on a different machine: cpu.isa: AVX2 → AVX512",)
    state, asked = confirm(curve(), candidate, lambda request: rerun(candidate, request, fingerprint=other_kernel()))
    assert len(asked) == 2


@pytest.mark.parametrize("heals", [True, False])
@pytest.mark.parametrize(("changes", "rung", "code"), [
    ({"dropout": [0.2, 0.1]}, "dropout", "rng"),
    ({"learning_rates": (*RATES[:3], 1e-2, *RATES[4:])}, "schedule", "schedule"),
])  # fmt: skip
def test_a_definition_that_changes_nothing_is_followed_by_a_rerun_of_the_reference(
    changes: dict[str, Any], rung: str, code: str, heals: bool
) -> None:
    reference, candidate = curve(learning_rates=RATES), curve(5, **({"learning_rates": RATES} | changes))

    def answer(request: Request) -> LoadedRecord:
        defined = any(replay.stage == rung and replay.step is None for replay in request.experiment.replays)
        return rerun(reference if request.runs_on == "reference" or (defined and heals) else candidate, request)

    for budget, sure in ((2, "confirmed" if heals else "likely"), (3, "confirmed")):
        state, asked = confirm(reference, candidate, answer, budget)
        assert [replay.stage for replay in asked[1].experiment.replays] == [rung]
        assert named(state) == [(code, sure)]
        assert [request.runs_on for request in asked[2:]] == ([] if heals else ["reference"][: budget - 2])
        assert heals == tried(state)[1].endswith("the curve equals the reference's again")


@pytest.mark.parametrize(("repeats", "sure"), [(True, "confirmed"), (False, "likely")])
def test_an_evaluation_that_a_rerun_repeats_is_confirmed_beside_a_training(repeats: bool, sure: str) -> None:
    def sides(**changes: Any) -> tuple[LoadedRecord, LoadedRecord]:
        end = [EVALUATION.replace(step=4, **changes).to_json()]
        return curve(evaluations=end, **at_five()), curve(3, evaluations=end, **at_five(loss="0x1p-2"))

    (reference, plain), (_, candidate) = sides(), sides(training_mode=True)
    state, _ = confirm(reference, candidate, repeating(reference, candidate if repeats else plain))
    assert named(state) == [("loss", "confirmed"), ("evaluation", sure)]


def test_a_curve_is_tested_only_where_it_should_have_equal_bits() -> None:
    candidate = curve(5)
    judgement = compare(curve(), candidate)
    assert begin(curve(), candidate, judgement, 1).curve is not None
    other = [finding.replace(outcome="pass") for finding in judgement.findings]
    for left, right, judged, budget in (
        (curve(), candidate, judgement, 0), (curve(), candidate, judgement.replace(findings=other), 6),
        (with_evidence(curve(), learn=None), candidate, judgement, 6), (curve(), curve(), judgement, 6),
        (curve(), with_evidence(candidate, learn=None), judgement, 6),
    ):  # fmt: skip
        assert begin(left, right, judged, budget).curve is None
    probed = make_record(gradient_factor=1.5)
    assert begin(make_record(), probed, compare(make_record(), probed), 6).curve is None
