"""View model: correct headlines, and missing values marked as missing."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from plumbline.report.differences import differences
from plumbline.report.history import HistoryPoint, changes_of, since
from plumbline.report.html import render_page
from plumbline.report.sentences import cause_line, clean, number, place, seconds
from plumbline.schema.verdict import PlatformResult
from tests.unit.report.samples import drifted, finding, made_view, many, nights, passing, record, verdict_of

TF32 = {"numerics": {"fp32_precision.cuda.matmul": "tf32", "deterministic_algorithms": True}}
START = "bert.encoder.layer.0"


@pytest.fixture(scope="module")
def drift():
    records = {"aws": record("aws"), "azure": record("azure", noise=3.1e-4, start=START, rate=655.0, **TF32)}
    before = {"azure": record("azure", packages={"torch": "2.12.1"}, rate=640.0)}
    verdict = verdict_of("drift", {"azure": drifted(), "aws": passing()})
    return made_view(verdict, records, reference="aws", baselines=before, history=nights())


def test_the_headline_names_platform_and_cause_and_the_case_answers_every_question(drift):
    assert drift.headline.sentence == "azure has drifted: numeric precision differs from the spec."
    assert drift.headline.support == "1 drifted (azure); 1 passed (aws)"
    assert drift.headline.night == "2026-11-20 02:00 UTC"
    case = drift.cards[0]
    assert (case.cause.code, case.cause.sure) == ("precision", "confirmed")
    assert place(case.result.first_divergence) == "forward, bert.encoder.layer.0.attention.self.query, step 0"
    assert case.since == "2026-11-18 (3 rounds); before that pass on 2026-11-17"
    assert "TF32" in case.hint
    assert [(item.observed, item.limit) for item in case.findings] == [(3.1e-4, 4.8e-6), (8.4e-5, 4.8e-6)]
    assert "the difference went away" in case.tried[0]


def test_the_reference_stands_first_and_throughput_is_held_against_its_own_baseline(drift):
    assert [row.name for row in drift.rows] == ["aws", "azure"]
    assert drift.rows[1].throughput_note == "+2.3 % against its baseline"
    assert drift.rows[0].throughput_note == ""


def test_only_what_differs_between_environments_is_listed(drift):
    between, own = drift.changes
    assert [(row.key, row.values) for row in between.rows] == [("fp32_precision.cuda.matmul", ("ieee", "tf32"))]
    assert ("packages", "torch", ("2.12.1", "2.13.0")) in [(row.group, row.key, row.values) for row in own.rows]
    assert ("packages", "numpy", ("—", "2.4.6")) in [(row.group, row.key, row.values) for row in own.rows]


def test_the_night_before_is_compared_package_by_package():
    before = record("azure", packages={"torch": "2.12.1"}, lock_sha256="b" * 64).record.replace(round_id="20261119-a")
    verdict = verdict_of("drift", {"azure": drifted(), "aws": passing()})
    records = {"aws": record("aws"), "azure": record("azure", lock_sha256="c" * 64)}
    view = made_view(verdict, records, reference="aws", earlier={"azure": before})
    (table,) = [table for table in view.changes if table.title == "azure since 20261119-a"]
    assert table.columns == ("20261119-a", "now")
    rows = {row.key: row.values for row in table.rows}
    assert rows["torch"] == ("2.12.1", "2.13.0")
    assert rows["lock file"] == ("b" * 12, "c" * 12)
    (night,) = view.since
    assert (night.accuracy, night.num_differences) == ("— → 80.27 %", len(table.rows))
    assert night.throughput.endswith("%)")


def test_the_taps_chart_counts_and_places_what_is_over_its_limit(drift):
    chart = drift.workloads[0].charts[0]
    assert "azure: 38 of 40 over the limit" in chart.note
    assert [label.text for label in chart.labels] == ["first: bert.encoder.layer.0.attention.self.query"]
    strong, weak = ([mark for mark in chart.marks if mark.strong is side] for side in (True, False))
    assert (len(strong), len(weak)) == (38, 2)
    assert max(mark.y for mark in strong) < min(mark.y for mark in weak)
    assert all(chart.left <= mark.x <= chart.right and chart.top <= mark.y <= chart.bottom for mark in chart.marks)


def test_equal_runs_need_no_taps_chart_and_are_said_to_be_equal():
    records = {"aws": record("aws"), "azure": record("azure")}
    view = made_view(verdict_of("pass", {"aws": passing(), "azure": passing()}), records, reference="aws")
    assert view.headline.sentence == "Training is the same on both platforms."
    assert view.headline.support.endswith("losses and weights are equal to the last bit at every step of the probe")
    assert [chart.title for chart in view.workloads[0].charts] == ["Loss of the probe", "Loss while learning"]
    assert view.cards == ()


def test_the_first_lines_say_what_was_proven_of_production_settings_and_curves():
    def said(*findings):
        results = {"aws": passing(), "azure": passing().replace(findings=findings)}
        return made_view(verdict_of("pass", results), {}, reference="aws").headline.support

    near, far = (
        finding("production.equality", "pass").replace(observed=error, limit=0.04, detail=f"bf16: {error}")
        for error in (0.02, 0.01)
    )
    windows = finding("learn.portable", "pass").replace(observed=4.0, limit=4.0)
    assert said(far, near, windows).endswith("bf16: 0.02; learning curves: formulas identical at 4 checkpoints")
    timed = finding("speed.throughput", "pass")
    assert said(timed).endswith("production settings were timed, and not judged")
    assert "production" not in said()


def test_rounding_alone_passes_and_is_never_called_equal():
    records = {"aws": record("aws"), "azure": record("azure", wobble=1e-7)}
    verdict = verdict_of(
        "pass",
        {
            "aws": passing(),
            "azure": passing(notes=({"code": "rounding", "text": "at most 1.7 where 2.8 is rounding"},)),
        },
    )
    view = made_view(verdict, records, reference="aws")
    assert "azure differ from the reference by rounding alone" in view.headline.support
    assert view.rows[1].notes == ("at most 1.7 where 2.8 is rounding",)
    assert cause_line(verdict.platforms["azure"]) == "kernel: rounding only"
    assert "equal to the last bit" not in view.headline.support
    assert "azure: other kernels" in view.workloads[0].charts[0].note
    assert "not equal: losses" in view.workloads[0].words[0]


def test_platforms_with_the_same_equalities_share_one_line():
    verdict, records, _ = many(8)
    records["gcp"] = record("gcp")
    (workload,) = made_view(verdict, records, reference="aws").workloads
    first, second = workload.words
    others = "aws-spot-us-west-2, azure, azure-nv-a10-v5 and 3 more"
    assert first.startswith(f"{others}: equal to the last bit at every step of the probe: batches; not equal: ")
    assert second.startswith("gcp: equal to the last bit at every step of the probe: batches, losses")


def test_losses_that_a_loop_does_not_show_are_not_called_different():
    given = {name: without_losses(record(name)) for name in ("aws", "azure")}
    view = made_view(verdict_of("pass", {name: passing() for name in given}), given, reference="aws")
    assert view.workloads[0].words == (
        "azure: equal to the last bit at every step of the probe: batches and weights after every step",
    )


def without_losses(loaded):
    evidence = loaded.record.evidence
    probe = evidence.probe.replace(losses=(None,) * len(evidence.probe.losses))
    return replace(loaded, record=loaded.record.replace(evidence=evidence.replace(probe=probe)))


def test_three_platforms_and_one_of_them_cannot_be_judged():
    broken = PlatformResult(verdict="invalid", findings=(finding("record", "invalid", detail="rows.parquet is cut"),))
    verdict = verdict_of("invalid", {"aws": passing(), "azure": drifted(), "gcp": broken})
    view = made_view(verdict, {"aws": record("aws")}, reference="aws")
    assert view.headline.sentence == "gcp cannot be judged: rows.parquet is cut."
    assert view.headline.support == "1 not judged (gcp); 1 drifted (azure); 1 passed (aws)"
    assert [(case.name, case.result.verdict) for case in view.cards] == [("azure", "drift"), ("gcp", "invalid")]


def test_a_platform_that_never_came_is_told_by_its_reason():
    absent = PlatformResult(verdict="inconclusive", unavailable="no worker came online within 900 s")
    verdict = verdict_of("inconclusive", {"aws": passing(), "azure": absent})
    view = made_view(verdict, {"aws": record("aws")}, reference="aws")
    assert view.headline.sentence == "azure has too little evidence: no worker came online within 900 s."
    assert view.rows[1].machine == "no record"
    assert "doctor" in view.cards[0].hint


def test_a_round_without_any_platform_still_makes_a_report():
    view = made_view(verdict_of("inconclusive", {}, timings={}), {})
    assert view.headline.sentence.startswith("The round is inconclusive: too few platforms")
    assert view.rows == view.workloads == view.timings == ()


def test_a_record_of_a_failed_training_and_missing_parts_does_not_break_the_view():
    failed = record(
        "azure", evidence={}, exit={"status": "failed", "code": "non-finite", "message": "the loss is NaN at step 3"}
    )
    invalid = PlatformResult(verdict="invalid", findings=(finding("record", "invalid", detail="the loss is NaN"),))
    records = {"aws": record("aws"), "azure": failed}
    view = made_view(verdict_of("invalid", {"aws": passing(), "azure": invalid}), records, reference="aws")
    assert view.workloads[0].words == ("azure: no probe on both sides, so the numbers were not compared",)
    assert "failed: the loss is NaN at step 3" in render_page(view)


def test_a_missing_loss_leaves_a_gap_and_is_not_equal_to_another_missing_loss():
    records = {}
    for name in ("aws", "azure"):
        item = record(name)
        probe = item.record.evidence.probe
        losses = [None if step == 7 else loss for step, loss in enumerate(probe.losses)]
        evidence = item.record.evidence.replace(probe=probe.replace(losses=losses))
        records[name] = type(item)(item.record.replace(evidence=evidence), item.folder, item.arrays)
    view = made_view(verdict_of("pass", {"aws": passing(), "azure": passing()}), records, reference="aws")
    assert "not equal: losses" in view.workloads[0].words[0]
    assert [line.series for line in view.workloads[0].charts[0].lines] == [0, 0, 1, 1]


def test_several_workloads_each_have_their_own_evidence():
    lists = {
        name: [record(name), record(name, workload="bert-tiny-news", record_id=f"{name}-news")]
        for name in ("aws", "azure")
    }
    view = made_view(verdict_of("pass", {"aws": passing(), "azure": passing()}), lists, reference="aws")
    assert [workload.name for workload in view.workloads] == ["bert-tiny-reviews", "bert-tiny-news"]
    assert len(view.records) == 4


def test_a_drop_in_the_history_is_found_and_named():
    result = changes_of(nights())
    assert [(change.series, change.index) for change in result] == [("azure", 22)]
    assert result[0].words.startswith("61")


def test_a_panel_labels_its_own_change_with_the_numbers_alone():
    verdict, records, history = many(8)
    chart = made_view(verdict, records, reference="aws", history=history).history
    texts = [rule.text for panel in chart.panels if panel.title == "kubernetes-on-prem-paris" for rule in panel.rules]
    assert texts == ["696.9 to 644.8"]


def test_a_shared_chart_labels_a_change_with_its_platform():
    records = {name: record(name) for name in ("aws", "azure")}
    verdict = verdict_of("drift", {"aws": passing(), "azure": drifted()})
    (rule,) = made_view(verdict, records, reference="aws", history=nights()).history.rules
    assert rule.text.startswith("azure: 61")


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (["drift"], "no earlier round on record"),
        (["pass", "drift"], "2026-11-02 (this round); before that pass on 2026-11-01"),
        (["pass", "drift", "drift", "drift"], "2026-11-02 (3 rounds); before that pass on 2026-11-01"),
        (["drift", "pass", "drift"], "2026-11-03 (this round); before that pass on 2026-11-02"),
        (["drift", "drift"], "in every round on record, since 2026-11-01"),
    ],
)
def test_since_when(outcomes, words):
    points = [HistoryPoint(f"r{i}", f"2026-11-0{i + 1}", outcome) for i, outcome in enumerate(outcomes)]
    assert since(points, outcomes[-1]) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "missing"), (math.nan, "not finite"), (math.inf, "not finite"), (0.0, "0"), (3.1e-4, "3.10e-4"),
        (0.8047, "0.8047"), (1234.5, "1,234"), (-2.5e7, "-2.50e7"), ("float32", "float32"), (17.0, "17"),
    ],
)  # fmt: skip
def test_numbers_as_they_are_shown(value, words):
    assert number(value) == words


def test_durations_and_cleaned_text():
    assert [seconds(value) for value in (None, 0.0005, 0.25, 12.34, 125, 7325)] == [
        "—", "500 µs", "250 ms", "12.3 s", "2 min 05 s", "2 h 02 min",
    ]  # fmt: skip
    assert clean("a\x1b[31mred\x00\n\u202egnp.exe") == "a\ufffd[31mred\ufffd \ufffdgnp.exe"
    assert len(clean("x" * 10_000)) == 400


def test_a_table_of_two_different_environments_names_their_locks() -> None:
    old, new = (
        record("aws").record.fingerprint.replace(
            lock_sha256=digit * 64, packages={f"package-{n}": digit for n in range(100)}
        )
        for digit in "ab"
    )
    rows = differences([old, new])
    assert ("lock file", ("a" * 12, "b" * 12)) in [(row.key, row.values) for row in rows[:10]]


def test_a_comparison_s_time_is_the_candidate_s() -> None:
    reference, candidate = record("one"), record("two")
    earlier = reference.record.replace(started_at=reference.record.started_at - timedelta(days=1))
    records = {"one": replace(reference, record=earlier), "two": candidate}
    verdict = verdict_of("pass", {"one": passing(), "two": passing()}, round="two")
    assert made_view(verdict, records, reference="one", unjudged="one").headline.night == "2026-11-20 02:00 UTC"
