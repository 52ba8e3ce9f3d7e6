"""Rounds choose their reference and merge their judgements, and a comparison notes what has no effect."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare, judge_round, merge, trusted_reference
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Cause, Divergence, Finding, Judgement, Note

from .conftest import make_record, other_kernel
from .made_records import Change, checked, edit, evaluation, in_spec, named, old, whole

# Rounds.


def test_a_reference_is_replaced_by_a_platform_that_agrees_with_its_own_baseline_alone() -> None:
    off = {"gradient_factor": 1.25}
    records = {"a": named("a", **off), "b": named("b")}
    assert trusted_reference(records, "a", {}).name == "a"
    assert trusted_reference(records, "a", {"b": old("b")}).name == "b"
    # Neither agrees with its own baseline: nothing speaks for the other.
    both = {"a": named("a", **off), "b": named("b", gradient_factor=1.5)}
    assert trusted_reference(both, "a", {name: old(name) for name in "ab"}).name == "a"
    assert trusted_reference(records, "a", {name: old(name) for name in "ab"}).name == "b"


@pytest.mark.parametrize("prefix", ["0", "z"])
def test_only_the_record_itself_is_no_baseline(prefix: str) -> None:
    records = {"a": named("a", gradient_factor=1.25), "b": named("b")}

    def before(name: str, record_id: str) -> LoadedRecord:
        made = named(name)
        return LoadedRecord(made.record.replace(record_id=record_id), made.folder, made.arrays)

    assert trusted_reference(records, "a", {name: before(name, f"{prefix}-{name}") for name in "ab"}).name == "b"
    assert trusted_reference(records, "a", {name: before(name, name) for name in "ab"}).name == "a"


def test_a_reference_whose_selfcheck_failed_is_replaced_by_one_that_nothing_speaks_against() -> None:
    off = {"portable": {"0/outputs/layer.linear": "f" * 16}, "fingerprint": other_kernel()}
    records = {"a": checked("a", "drift", **off), "b": checked("b", "drift"), "c": checked("c", "unknown")}
    assert trusted_reference(records, "a", {}).name == "c"
    records["b"] = checked("b", "pass")
    assert trusted_reference(records, "a", {}).name == "b"


def test_a_round_reports_the_last_accuracy_and_all_records() -> None:
    ends = [evaluation(4) | {"accuracy": 0.25}, evaluation(6) | {"accuracy": 0.5}, evaluation(8) | {"accuracy": 0.75}]
    learned: Change = lambda content: content["evidence"]["learn"].update(evaluations=ends)  # noqa: E731
    made = edit(whole(), in_spec("learn", evaluate_every=2), learned)
    name: Change = lambda content: content.update(record_id="r", platform="p")  # noqa: E731
    rerun = edit(made, lambda content: content.update(record_id="again"))
    result = judge_round({"p": edit(made, name)}, "p", {}, reruns={"p": rerun})["p"]
    assert (result.accuracy, result.samples_per_second, result.records) == (0.75, 10.0, ("r", "again"))
    assert judge_round({"p": named("p")}, "p", {})["p"].accuracy is None
    # Three evaluations where four are due: by itself it is invalid.
    assert result.verdict == "invalid"
    assert [finding.check for finding in result.findings] == ["learn.evaluations", "learn.evaluations"]


@pytest.mark.parametrize(
    ("off", "count", "noted"),
    [("b", 2, []), ("b", 3, ["odd-one-out"]), ("d", 4, ["odd-one-out"]), ("", 3, []), ("a", 3, [])],
)
def test_a_single_different_platform_is_named_from_three_on(off: str, count: int, noted: list[str]) -> None:
    names = "abcd"[:count]
    records = {name: named(name, **({"gradient_factor": 1.25} if name in off else {})) for name in names}
    result = judge_round(records, "a", {})
    for name in names:
        assert [note.code for note in result[name].notes if note.code in ("odd-one-out", "reference")] == noted


def test_merged_judgements_keep_the_surest_cause_and_each_line_once() -> None:
    def part(outcome: Any, *causes: tuple[Any, Any], **fields: Any) -> Judgement:
        made = tuple(Cause(code=code, sure=sure, why=f"{code} {sure}") for code, sure in causes)
        return Judgement(verdict=outcome, causes=made, findings=(Finding(check="c", outcome=outcome),), **fields)

    first, second = (Divergence(stage="forward", step=step, at="m") for step in (3, 1))
    notes = [Note(text=text) for text in ("x", "y")]
    merged = merge([
            part("pass", suspects=("s", "t"), notes=(notes[0],)),
            part("drift", ("loss", "confirmed"), ("rng", "unattributed"), ("kernel", "likely"), first_divergence=first),
            part("inconclusive", ("loss", "likely"), ("rng", "likely"), ("kernel", "likely"), suspects=("t", "u"),
                 first_divergence=second, notes=(notes[1], notes[0])),
        ])  # fmt: skip
    assert (merged.verdict, merge([]).verdict) == ("drift", "inconclusive")
    assert [(each.code, each.sure) for each in merged.causes] == [
        ("loss", "confirmed"), ("rng", "likely"), ("kernel", "likely"),
    ]  # fmt: skip
    assert merged.first_divergence == first
    assert (merged.suspects, merged.notes, len(merged.findings)) == (("s", "t", "u"), tuple(notes), 3)


# Notes of a comparison.


def test_a_file_of_the_tokenizer_and_a_manifest_that_differ_without_effect_are_noted() -> None:
    def changed(name: str) -> Change:
        return lambda content: content["evidence"]["data"].update({name: "9" * 64})

    made = make_record()
    for fields, codes in (
        (("tokenizer_sha256",), ["tokenizer"]),
        (("manifest_sha256",), ["manifest"]),
        (("manifest_sha256", "tokenizer_sha256"), ["manifest", "tokenizer"]),
    ):
        other = edit(made, *(changed(name) for name in fields))
        judgement = compare(made, other)
        assert (judgement.verdict, [note.code for note in judgement.notes]) == ("pass", [*codes, "equal-bits"])
