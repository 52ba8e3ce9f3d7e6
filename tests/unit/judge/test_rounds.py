"""A round: every platform against the reference and its own baseline, and who stands alone."""

from __future__ import annotations

from plumbline.judge import judge_round, merge
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Judgement

from .conftest import make_record, other_kernel


def named(name: str, **changes: object) -> LoadedRecord:
    made = make_record(**changes)
    return LoadedRecord(made.record.replace(record_id=name, platform=name), made.folder, made.arrays)


def test_a_platform_that_drifts_is_named_and_the_reference_is_not() -> None:
    found = judge_round({"a": named("a"), "b": named("b", gradient_factor=2.0)}, "a", {})
    assert found["a"].verdict == "pass"
    assert found["b"].verdict == "drift"
    assert found["b"].causes[0].code == "gradient"
    assert found["b"].findings[0].against == "platform a"
    assert found["b"].records == ("b",)


def test_a_first_night_passes_and_offers_to_accept_a_baseline() -> None:
    found = judge_round({"a": named("a")}, "a", {})
    assert found["a"].verdict == "pass"
    assert any("plumbline baseline accept" in note for note in found["a"].notes)


def test_the_baseline_finds_what_all_platforms_share() -> None:
    tonight = {name: named(name, decay=0.02) for name in ("a", "b")}
    baselines = {
        name: LoadedRecord(r.record.replace(record_id="old"), r.folder, r.arrays)
        for name, r in (("a", named("a")), ("b", named("b")))
    }
    found = judge_round(tonight, "a", baselines)
    assert [found[name].verdict for name in ("a", "b")] == ["drift", "drift"]
    assert {f.against for f in found["b"].findings if f.outcome == "drift"} == {"baseline old"}


def test_of_three_the_odd_one_out_is_named_even_if_it_is_the_reference() -> None:
    noise = {"layer.norm": 1e-3}
    found = judge_round({"a": named("a", noise=noise), "b": named("b"), "c": named("c")}, "a", {})
    assert found["a"].verdict == "drift"
    assert any("a is the odd one out" in note for note in found["b"].notes)
    other = judge_round({"a": named("a"), "b": named("b"), "c": named("c", noise=noise)}, "a", {})
    assert other["a"].verdict == "pass"
    assert any("c is the odd one out" in note for note in other["a"].notes)


def test_fp64_says_who_is_off() -> None:
    rounding = {"noise": {"layer.linear": 1e-3}, "own_error": 1e-3, "fingerprint": other_kernel()}
    found = judge_round({"a": named("a"), "b": named("b"), "c": named("c", **rounding)}, "a", {})
    note = next(note for note in found["c"].notes if "odd one out" in note)
    assert "c is up to 0.001 away" in note


def test_a_platforms_own_gates_hold_for_it() -> None:
    records = {"a": named("a"), "b": named("b")}
    found = judge_round(records, "a", {}, Gates(), platform_gates={"b": Gates(throughput_drop=0.5)})
    assert found["b"].verdict == "pass"


def test_merged_causes_stand_once_the_surest_first_and_the_worst_verdict_wins() -> None:
    likely, sure = (Cause(code="loss", sure=how, why="x") for how in ("likely", "confirmed"))  # type: ignore[arg-type]
    merged = merge([Judgement(verdict="drift", causes=(likely,)), Judgement(verdict="invalid", causes=(sure,))])
    assert merged.verdict == "invalid"
    assert [cause.sure for cause in merged.causes] == ["confirmed"]
    assert merge([]).verdict == "inconclusive"
