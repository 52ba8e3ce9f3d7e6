"""Whom a difference between platforms accuses: own baselines, fp64, the selfcheck and the majority decide."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import judge_round
from plumbline.night.rounds.confirming import open_cases, wanted
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import PlatformResult
from tests.said import said
from tests.unit.suites import round_of, suite_of

from .conftest import other_kernel, spec
from .made_records import checked, edit, named, old

OFF: dict[str, Any] = {"gradient_factor": 1.25}
OTHER: dict[str, Any] = {"gradient_factor": 1.5}


def verdicts(results: dict[str, PlatformResult]) -> str:
    return " ".join(result.verdict for result in results.values())


def doubt(result: PlatformResult) -> tuple[str, str]:
    (finding,) = (finding for finding in result.findings if finding.check == "platform.difference")
    return finding.outcome, said(finding.detail)


def accused_by(result: PlatformResult) -> set[str]:
    return {finding.against for finding in result.findings if finding.outcome == "drift"}


def platforms(off: dict[str, dict[str, Any]], names: str) -> dict[str, LoadedRecord]:
    return {name: named(name, **off.get(name, {})) for name in names}


def experiments(records: dict[str, LoadedRecord], baselines: dict[str, LoadedRecord]) -> set[str]:
    """Return the platforms on which a round orders experiments first."""
    round_ = round_of(suite_of(*records), spec())
    gathered = GatheredRecords({Assignment(name, "w", MAIN): record for name, record in records.items()})
    results = judge_harvest(round_, gathered, {"w": baselines}, {}, {})
    cases = open_cases(round_, gathered, {"w": baselines}, results)
    return {assignment.platform for _, _, assignment in wanted(cases)}


def test_of_two_a_reference_without_a_baseline_is_judged_against_the_healthy_platform() -> None:
    records, baselines = platforms({"a": OFF}, "ab"), {"b": old("b")}
    result = judge_round(records, "a", baselines)
    assert verdicts(result) == "drift pass"
    assert accused_by(result["a"]) == {"platform b"}
    assert experiments(records, baselines) == {"a"}


def test_a_platform_that_agrees_with_its_own_baseline_is_not_outvoted() -> None:
    records, baselines = platforms({"a": OFF, "b": OFF}, "abc"), {name: old(name) for name in "bc"}
    result = judge_round(records, "a", baselines)
    assert verdicts(result) == "drift drift pass"
    assert experiments(records, baselines) == {"a", "b"}


def test_a_reference_that_left_its_baseline_accuses_nobody() -> None:
    records, baselines = platforms({"a": OFF}, "ab"), {"a": old("a")}
    result = judge_round(records, "a", baselines)
    assert verdicts(result) == "drift inconclusive"
    assert accused_by(result["a"]) == {"baseline old-a"}
    outcome, why = doubt(result["b"])
    assert (outcome, result["b"].causes) == ("inconclusive", ())
    assert why == (
        "differs from a, but a differs from its own baseline: no platform can say which is right "
        "(gradient at step 0: head.weight)"
    )
    assert experiments(records, baselines) == {"a"}
    # Three that all differ: b and c have nothing to be judged by.
    three = platforms({"a": OFF, "c": OTHER}, "abc")
    assert verdicts(judge_round(three, "a", baselines)) == "drift inconclusive inconclusive"
    # b and c agree, and no accepted record vouches for either.
    assert verdicts(judge_round(platforms({"a": OFF}, "abc"), "a", baselines)) == "drift inconclusive inconclusive"


def test_an_accepted_difference_between_platforms_is_a_note() -> None:
    records, baselines = platforms({"b": OFF}, "ab"), {"a": old("a"), "b": old("b", **OFF)}
    result = judge_round(records, "a", baselines)
    assert verdicts(result) == "pass pass"
    assert (result["b"].causes, result["b"].first_divergence) == ((), None)
    (note,) = (note for note in result["b"].notes if note.code == "accepted-difference")
    assert said(note.text) == "differs from a as their accepted baselines do (gradient at step 0: head.weight)"
    assert doubt(result["b"]) == ("pass", said(note.text))
    assert experiments(records, baselines) == set()


def test_an_accepted_difference_costs_no_experiments_beside_another_drift() -> None:
    # c left its own baseline, and differs from the reference as ever: its own past is what it is tested against.
    records = platforms({"b": OFF, "c": OTHER}, "abc")
    baselines = {"a": old("a"), "b": old("b", **OFF), "c": old("c", **OFF)}
    assert verdicts(judge_round(records, "a", baselines)) == "pass pass drift"
    assert experiments(records, baselines) == {"c"}


def test_healthy_platforms_whose_baselines_agree_are_in_doubt_not_in_drift() -> None:
    # Rounding differed when the baselines were accepted; tonight both machines are equal, and bits are due.
    records = {"a": named("a"), "b": named("b", noise={"layer.norm": 1e-7})}
    baselines = {name: old(name, fingerprint=other_kernel()) for name in "ab"}
    result = judge_round(records, "a", baselines)
    assert verdicts(result) == "pass inconclusive"
    assert "no such difference was accepted" in doubt(result["b"])[1]
    assert experiments(records, baselines) == set()


def test_a_platform_without_a_baseline_drifts_from_a_healthy_reference() -> None:
    assert verdicts(judge_round(platforms({"b": OFF}, "ab"), "a", {"a": old("a")})) == "pass drift"


def test_a_failed_selfcheck_bears_no_witness() -> None:
    records = {"a": checked("a", "drift", noise={"layer.norm": 1e-3}), "b": checked("b", "unknown")}
    result = judge_round(records, "a", {})
    assert verdicts(result) == "drift pass"
    assert "software" in {cause.code for cause in result["a"].causes}
    # Failed on all, it tells none apart: each is a drift by itself, and the suite's reference stays.
    records = {name: checked(name, "drift", **(OFF if name == "b" else {})) for name in "ab"}
    result = judge_round(records, "a", {})
    assert verdicts(result) == "drift drift"
    assert {finding.against for finding in result["b"].findings} == {"platform a"}


def in_ten_bits(made: LoadedRecord) -> LoadedRecord:
    """A record whose matrix products kept 10 bits of the spec's 23."""
    return edit(made, lambda content: content["fingerprint"]["mantissa_bits"].update(linear=10))


def test_a_reference_in_another_precision_than_the_specs_bears_no_witness() -> None:
    records = {"a": in_ten_bits(named("a", noise={"layer.norm": 1e-3})), "b": named("b")}
    result = judge_round(records, "a", {})
    assert verdicts(result) == "drift pass"
    assert accused_by(result["a"]) == {"platform b"}
    # With a baseline that was as wrong it is not a witness either, and cannot be judged.
    steady = in_ten_bits(old("a", noise={"layer.norm": 1e-3}))
    result = judge_round({name: records[name] for name in "ba"}, "b", {"a": steady})
    assert verdicts(result) == "pass invalid"


def test_where_all_agree_the_suites_reference_stays() -> None:
    result = judge_round(platforms({}, "ab"), "a", {"b": old("b")})
    assert verdicts(result) == "pass pass"
    assert "platform a" in {finding.against for finding in result["b"].findings}


@pytest.mark.parametrize(("margin", "expected"), [(0.4, "pass drift"), (0.2, "drift inconclusive")])
def test_the_suites_own_gates_say_who_is_healthy(margin: float, expected: str) -> None:
    def ended(record: LoadedRecord, accuracy: float) -> LoadedRecord:
        evaluation = record.record.evidence.probe.evaluation.to_json()  # type: ignore[union-attr]
        learn = {
            "steps": 2, "losses": [0.7] * 2, "weights": [[2, "d" * 16]],
            "evaluations": [evaluation | {"accuracy": accuracy, "num_rows": 4096}],
        }  # fmt: skip
        return edit(record, lambda content: content["evidence"].update(learn=learn))

    records = {
        "a": ended(named("a", fingerprint=other_kernel()), 0.5),
        "b": ended(named("b", **OFF, portable={"0/gradients/head.weight": "f" * 16}), 0.5),
    }
    baselines = {"a": ended(old("a"), 0.8)}
    assert verdicts(judge_round(records, "a", baselines, Gates(accuracy_margin=margin))) == expected
