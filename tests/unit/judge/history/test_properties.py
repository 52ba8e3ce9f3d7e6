"""No series of values, gaps, repetitions or orders makes the engine raise, or pass a night that has no value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.history.scenarios import OF_FILE, line_of_scores
from plumbline.cli.exchange.external import parse_external
from plumbline.judge.history.allowed import allowed_for
from plumbline.judge.history.decision import Answers
from plumbline.judge.history.experiments import judge_reruns
from plumbline.judge.history.metrics import METRICS, extended
from plumbline.judge.history.night import call_entry, judge_lines
from plumbline.judge.history.reference import Reference
from plumbline.judge.history.segments import lines_of
from plumbline.judge.statistics.equivalence import equivalence
from plumbline.judge.statistics.paired import paired_test
from plumbline.night.noise_floor import noise_floor
from plumbline.report.decisions import finding_of
from plumbline.report.summary import ChangeSummary, summarise
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.series import SeriesFile
from tests.unit.judge.history.nights import ALLOWED, BEGIN, line_of, night, series_of

# What a store can hold: JSON has neither NaN nor infinity.
STORED = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([1.0, 2.0, 0.0]))
ANY = st.one_of(st.floats(), st.just(1.0))
METRIC_NAMES = [metric.name for metric in METRICS]


@st.composite
def _series(draw: st.DrawFn) -> SeriesFile:
    """Draw nights of any values, gaps, machines and specs, extended in any order."""
    count = draw(st.integers(1, 45))
    values = draw(st.lists(STORED, min_size=count, max_size=count))
    name = draw(st.sampled_from(METRIC_NAMES))
    days = draw(st.permutations(range(count)))
    machines, specs = (draw(st.lists(st.sampled_from(pair), min_size=count, max_size=count)) for pair in ("ab", "ss"))
    rows = [
        night(day, {name: value}, hardware=machine, spec=spec)
        for day, value, machine, spec in zip(days, values, machines, specs, strict=True)
    ]
    return extended(SeriesFile(suite="nightly", platform="aws"), rows)


@settings(max_examples=120, deadline=None)
@given(_series(), st.lists(ANY, max_size=5), st.sampled_from(["can-differ", "equal", "unavailable"]))
def test_any_stored_series_is_judged_and_a_gap_never_passes(series: SeriesFile, reruns: list[float], software) -> None:
    for line in lines_of(series, METRICS, {"bert": [BEGIN]}):
        key = (line.workload, line.metric.name)
        for answers in (Answers(), Answers(reruns=tuple(reruns))):
            (one,) = judge_lines([line], ALLOWED, {key: answers}, {key: software})
            finding_of(one)
            call_entry(one)
            tonight = line.metric.scores(line.values[-1:])[0]
            if not math.isfinite(tonight):
                assert (one.verdict, one.reason) == ("inconclusive", "missing")
            elif np.isfinite(line.metric.scores(line.values[:-1])).sum() < 5:
                assert one.verdict != "pass"
        assert summarise(line, ALLOWED).nights == len(line.values)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=40), st.randoms())
def test_the_order_in_which_nights_arrive_changes_nothing(values: list[float], random) -> None:
    rows = [night(index, {"throughput": value}) for index, value in enumerate(values)]
    shuffled = random.sample(rows, len(rows))
    reordered = SeriesFile(suite="nightly", platform="aws")
    for row in shuffled:
        reordered = extended(reordered, [row])
    expected, found = (line_of(series) for series in (series_of(np.array(values)), reordered))
    assert (found.times, found.records, found.values) == (expected.times, expected.records, expected.values)
    decisions = [judge_lines([line], ALLOWED)[0] for line in (expected, found)]
    assert decisions[0].reason == decisions[1].reason
    assert decisions[0].decision.size == decisions[1].decision.size


@pytest.mark.parametrize("count", [1, 4, 5, 12, 40, 80])
def test_a_constant_series_is_quiet_and_an_unlike_night_after_it_is_not(count: int) -> None:
    def reason(*values: float) -> tuple[str, str]:
        (one,) = judge_lines([line_of(series_of(np.array(values)))], ALLOWED, software={})
        return one.verdict, one.reason

    learning = ("inconclusive", "learning")
    assert reason(*[100.0] * (count + 1)) == (("pass", "quiet") if count >= 5 else learning)
    assert reason(*[100.0] * count, 50.0) == (("inconclusive", "open-loss") if count >= 5 else learning)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(ANY, min_size=4, max_size=4), max_size=7), st.lists(ANY, max_size=6))
def test_any_experiment_is_answered_or_open(blocks: list[list[float]], reruns: list[float]) -> None:
    runs = np.array(blocks, dtype=np.float64).reshape(-1, 4)
    found = paired_test(runs[:, :2], runs[:, 2:], 5e-4)
    whole = int(np.isfinite(runs).all(axis=1).sum())
    assert (found is not None) == (whole >= 2)
    assert found is None or 0 <= found.p_value <= 1
    rerun = judge_reruns(reruns, Reference(1.0, 0.01, 20, 0.0))
    assert not rerun.holds or any(map(math.isfinite, reruns))


@settings(max_examples=100, deadline=None)
@example(left=[1e308, 1.1e308], right=[])
@given(left=st.lists(ANY, max_size=30), right=st.lists(ANY, max_size=30))
def test_any_runs_have_a_noise_floor_and_an_equivalence(left: list[float], right: list[float]) -> None:
    floor = noise_floor(left)
    assert floor.runs == sum(math.isfinite(value) and value > 0 for value in left)
    test = equivalence(left, right, 0.01)
    if sum(map(math.isfinite, left)) < 2 or not any(map(math.isfinite, right)):
        assert test is None


@settings(max_examples=100, deadline=None)
@example(values=[1e308, 1e-308] * 6)
@example(values=[0.0, 1e9, 1e-309, 1e-309])
@given(values=st.lists(ANY, min_size=1, max_size=40))
def test_any_external_series_is_summarised(values: list[float]) -> None:
    text = "\n".join(["time,metric,value", *(f"{1785000000 + day},speed,{value}" for day, value in enumerate(values))])
    (line,) = parse_external(text, where="x").histories
    summary = summarise(line, ALLOWED)
    assert (summary.nights, summary.verdict == "pass" and not math.isfinite(values[-1])) == (len(values), False)


def _lost(changes: Sequence[ChangeSummary], *, with_before: bool) -> bool:
    """Return whether the last level is below the best one, by half a percent."""
    best, is_lost = changes[0].before if changes else 0.0, False
    for change in changes:
        best = max(best, change.before) if with_before else best
        is_lost = change.after < best * math.exp(-0.005)
        best = change.after if change.after > best * math.exp(0.005) else best
    return is_lost


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(3, 40), st.sampled_from([-0.08, -0.05, -0.03, 0.0, 0.03, 0.05, 0.08])), min_size=1,
             max_size=4),
    st.integers(0, 1000),
)  # fmt: skip
@example([(39, 0.05), (24, 0.03), (29, 0.05), (6, 0.03)], 1)
@example([(30, 0.08), (3, -0.08), (25, -0.08), (15, 0.03)], 4)
def test_the_verdict_and_the_changes_of_a_file_never_contradict_each_other(
    steps: list[tuple[int, float]], seed: int
) -> None:
    levels = np.concatenate([np.full(30, 0.0), *(np.full(count, size) for count, size in steps)])
    values = 100 * np.exp(np.random.default_rng(seed).normal(levels, 0.01))
    text = "\n".join(["time,metric,value", *(f"{86400 * day},speed,{value}" for day, value in enumerate(values))])
    (line,) = parse_external(text, where="x").histories
    alone = allowed_for(num_platforms=1, num_series=12, has_experiments=False)
    summary = summarise(line, alone, is_judged=False)
    # A level that lies between two changes is estimated by both: where they disagree, either verdict is right.
    lost = [_lost(summary.changes, with_before=with_before) for with_before in (False, True)]
    if summary.verdict == "drift":
        assert summary.changes
        assert any(lost), summary.changes
        assert summary.changes[-1].after < (summary.reference or 0)
        assert f"since {summary.changes[-1].since}" in summary.sentence, summary.changes
    else:
        assert not (all(lost) and summary.changes[-1].worse), (summary.verdict, summary.changes)


def _is_listed(before: int, size: float, after: int, first: int) -> bool:
    """Return whether a file lists a step that stands for ten nights, and is undone if nights come `after` them."""
    # Normal quantiles in a scattered order: random noise seems correlated now and then, and then hides a step.
    shares = ((np.arange(before + 10 + after) + first) * 0.6180339887498949) % 1.0
    scores = np.array([0.01 * NormalDist().inv_cdf(min(max(share, 1e-3), 0.999)) for share in shares.tolist()])
    scores[before : before + 10] += size
    summary = summarise(line_of_scores(scores), OF_FILE, is_judged=False)
    dates = [int(change.round) for change in summary.changes if change.worse == (size > 0)]
    return any(abs(date - before) <= 2 for date in dates)


@settings(max_examples=60, deadline=None)
@given(st.integers(20, 80), st.sampled_from([-0.04, 0.04]), st.integers(0, 500))
def test_a_step_of_four_sd_that_stands_for_ten_nights_is_in_the_list_of_a_file(
    before: int, size: float, first: int
) -> None:
    assert _is_listed(before, size, 0, first)


def test_a_step_of_four_sd_that_is_undone_after_ten_nights_is_in_the_list_of_nearly_every_file() -> None:
    steps = [(before, size, after) for before in range(20, 80, 6) for size in (-0.04, 0.04) for after in (15, 40, 60)]
    assert sum(_is_listed(*step, first=29 * number) for number, step in enumerate(steps)) >= 0.95 * len(steps)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_series_or_one_clear_error(text: str) -> None:
    for head in ("", "time,metric,value\n", '{"time": 1, "metric": "a", "value": '):
        with suppress(InvalidInputError):
            parse_external(head + text, where="x")
