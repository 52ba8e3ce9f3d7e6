"""Judgement of a round: reference, baselines, and a single different platform."""

from __future__ import annotations

import pytest

from plumbline.judge import judge_round
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from tests.kept_results import kept
from tests.said import said

from .made_records import checked, named, old
from .made_speed import record, speed

judge_round = kept(judge_round)


def test_a_first_night_passes_and_offers_to_accept_a_baseline() -> None:
    result = judge_round({"a": named("a")}, "a", {})
    assert result["a"].verdict == "pass"
    assert any(note.code == "no-baseline" for note in result["a"].notes)


def test_the_baseline_finds_what_all_platforms_share() -> None:
    """The baselines of other tests are behind tonight's records in the alphabet, this one is before them."""
    tonight = {name: named(name, decay=0.02) for name in ("a", "b")}
    baselines = {
        name: LoadedRecord(r.record.replace(record_id="0-old"), r.folder, r.arrays)
        for name, r in (("a", named("a")), ("b", named("b")))
    }
    result = judge_round(tonight, "a", baselines)
    assert [result[name].verdict for name in ("a", "b")] == ["drift", "drift"]
    assert {f.against for f in result["b"].findings if f.outcome == "drift"} == {"baseline 0-old"}


def test_of_three_the_odd_one_out_is_named_and_a_reference_only_by_a_baseline() -> None:
    noise = {"layer.norm": 1e-3}
    records = {"a": named("a", noise=noise), "b": named("b"), "c": named("c")}
    found = judge_round(records, "a", {"b": old("b")})
    assert {name: result.verdict for name, result in found.items()} == {"a": "drift", "b": "pass", "c": "pass"}
    assert {finding.against for finding in found["a"].findings} == {"platform b"}
    assert any(note.code == "reference" and "a, the suite's" in said(note.text) for note in found["b"].notes)
    other = judge_round({"a": named("a"), "b": named("b"), "c": named("c", noise=noise)}, "a", {})
    assert other["a"].verdict == "pass"
    assert any(note.code == "odd-one-out" and "only c differs" in said(note.text) for note in other["a"].notes)


def test_a_platforms_own_gates_hold_for_it() -> None:
    """Two platforms are 10% slower than their own baselines, and the gate of one allows 20%."""
    tonight = {name: record(speed(0.1), name) for name in ("a", "b")}
    fast = {name: record(speed(), name) for name in tonight}
    baselines = {name: LoadedRecord(r.record.replace(record_id="old"), r.folder, r.arrays) for name, r in fast.items()}
    result = judge_round(tonight, "a", baselines, Gates(), platform_gates={"b": Gates(throughput_drop=0.2)})
    assert [result[name].verdict for name in ("a", "b")] == ["inconclusive", "pass"]


OFF = {"gradient_factor": 1.25}


@pytest.mark.parametrize(
    ("off", "baselines", "verdicts"),
    [
        # No baselines: the suite's reference decides.
        ("a", "", "pass drift drift"),
        ("b", "", "pass drift pass"),
        ("bc", "", "pass drift drift"),
        # The reference agrees with its own approved record: two others that drift from theirs outvote nobody.
        ("bc", "abc", "pass drift drift"),
        ("a", "abc", "drift pass pass"),
        ("a", "bc", "drift pass pass"),
    ],
)
def test_whoever_is_off_is_accused_and_nobody_else(off: str, baselines: str, verdicts: str) -> None:
    records = {name: named(name, **(OFF if name in off else {})) for name in "abc"}
    result = judge_round(records, "a", {name: old(name) for name in baselines})
    assert [result[name].verdict for name in "abc"] == verdicts.split()


def test_a_failed_selfcheck_is_a_drift_that_needs_no_other_difference() -> None:
    found = judge_round({"a": checked("a", "pass"), "b": checked("b", "drift")}, "a", {})
    assert [(cause.code, cause.sure) for cause in found["b"].causes] == [("software", "confirmed")]
    assert "bert.embeddings.LayerNorm" in said(found["b"].causes[0].why)
    assert found["b"].verdict == "drift"
    for other in ("unknown", "pass"):
        assert judge_round({"a": checked("a", "pass"), "b": checked("b", other)}, "a", {})["b"].verdict == "pass"
    # The right bits are the release's: a failure is no smaller if every platform shares it, or if there is one only.
    both = judge_round({"a": checked("a", "drift"), "b": checked("b", "drift")}, "a", {})
    assert {result.verdict for result in both.values()} == {"drift"}
    alone = judge_round({"a": checked("a", "drift")}, "a", {})["a"]
    assert (alone.verdict, [cause.code for cause in alone.causes]) == ("drift", ["software"])


def test_a_failed_selfcheck_names_the_cause_of_a_training_that_failed() -> None:
    broken = checked("b", "drift")
    failed = broken.record.replace(exit={"status": "failed", "code": "non-finite", "message": "the loss is nan"})
    found = judge_round({"a": checked("a", "pass"), "b": LoadedRecord(failed, broken.folder, broken.arrays)}, "a", {})
    assert found["b"].verdict == "invalid"
    assert [cause.code for cause in found["b"].causes] == ["software"]
