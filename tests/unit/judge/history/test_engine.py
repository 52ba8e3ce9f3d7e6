"""The engine calls losses soon, dates them, and is quiet on noise; simulated on the code that decides."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.history.simulated_nights import (
    DETERMINISTIC,
    NOISES,
    World,
    first_call,
    make_levels,
    simulate_platform,
)
from plumbline.judge.history.allowed import allowed_for
from plumbline.judge.history.decision import Answers, Past, advance
from plumbline.judge.history.engine import decide
from plumbline.judge.history.metrics import METRICS, extended
from plumbline.judge.history.night import judge_lines
from plumbline.judge.history.segments import lines_of
from plumbline.schema.series import SeriesFile
from tests.unit.judge.history.nights import ALLOWED, BEGIN, line_of, night, noise, run_nights, series_of


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=list(key)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        pytest.param(kind, shared, marks=[] if index % 4 == 2 * shared else [pytest.mark.long])
        for index, kind in enumerate(sorted(NOISES))
        for shared in (False, True)
    ],
)
def test_noise_alone_is_called_less_than_the_bound(kind: str, shared: bool) -> None:
    # One platform of ten metrics for 150 nights; at one false alarm a year over four platforms 0.1 calls are expected.
    generator = _generator(11, sorted(NOISES).index(kind))
    levels = make_levels(generator, kind, 10, 150)
    tally = simulate_platform(World(kind, levels, np.zeros(150), shared, generator), ALLOWED)
    assert len(tally.calls) <= 1, [(series, night, call.reason) for series, night, call in tally.calls]
    assert tally.experiments <= tally.nights


@pytest.mark.long
def test_noise_alone_is_seldom_a_night_to_look_at() -> None:
    # At twelve nights a year over four platforms 3.7 are expected of three kinds of noise.
    looks = {}
    for kind in ("gaussian", "t3", "ar-0.6"):
        generator = _generator(12, sorted(NOISES).index(kind))
        levels = make_levels(generator, kind, 10, 150)
        looks[kind] = simulate_platform(World(kind, levels, np.zeros(150), 0.7, generator), ALLOWED).looks
    assert sum(looks.values()) <= 4, looks


def test_a_deterministic_metric_that_moves_with_each_lock_is_never_called() -> None:
    # Without a margin, three of these ten series are called.
    generator = _generator(11, 8)
    levels = make_levels(generator, DETERMINISTIC, 10, 150)
    world = World(DETERMINISTIC, levels, np.zeros(150), True, generator)
    tally = simulate_platform(world, ALLOWED)
    assert (tally.calls, tally.reruns, tally.inconclusive) == ([], 0, 0)


def _median_delay(loss: object, history: int = 60) -> float:
    delays = []
    for trial in range(25):
        generator = _generator(trial, 5)
        losses = np.concatenate([np.zeros(history), np.asarray(loss)])
        levels = make_levels(generator, "gaussian", 1, len(losses))
        tally = simulate_platform(World("gaussian", levels, losses, False, generator), ALLOWED, begin=history)
        called = first_call(tally)
        delays.append(math.inf if called is None else called - history + 1)
    return sorted(delays)[len(delays) // 2]


@pytest.mark.parametrize(
    ("loss", "nights"),
    [
        (np.full(10, 0.10), 1),
        (np.full(10, 0.05), 1),
        (np.full(20, 0.02), 6),
        (0.005 * np.arange(1, 21), 7),
        (0.002 * np.arange(1, 31), 14),
    ],
)
def test_a_loss_is_called_within_so_many_nights(loss: np.ndarray, nights: int) -> None:
    assert _median_delay(loss) <= nights


@pytest.mark.parametrize("history", [8, 20, 60])
@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_a_loss_of_thirty_percent_is_called_at_once_in_a_suite_of_many_platforms(history: int, share: float) -> None:
    allowed = allowed_for(num_platforms=21, num_series=210)
    losses = np.where(np.arange(history + 1) >= history, -math.log(0.7), 0.0)
    for seed in range(5):
        generator = _generator(seed, 13)
        world = World("gaussian", make_levels(generator, "gaussian", 10, history + 1), losses, share, generator)
        calls = simulate_platform(world, allowed, begin=history).calls
        assert [(series, call.reason) for series, _, call in calls] == [(series, "software") for series in range(10)]


def test_a_software_loss_is_called_by_the_experiment_with_size_and_interval() -> None:
    generator = _generator(3, 3)
    past = Past(generator.normal(0, 0.01, 60))
    first = decide(past, 0.06, ALLOWED)
    assert (first.verdict, first.needs) == ("inconclusive", "reruns")
    second = decide(past, 0.06, ALLOWED, Answers(reruns=(0.05, 0.06, 0.055, 0.05)))
    assert (second.verdict, second.needs) == ("inconclusive", "ab")
    ours, theirs = generator.normal(0.05, 0.01, (6, 2)), generator.normal(0, 0.01, (6, 2))
    third = decide(past, 0.06, ALLOWED, Answers((0.05, 0.06, 0.055, 0.05), ours, theirs))
    assert (third.verdict, third.reason) == ("drift", "software")
    assert third.low is not None
    assert third.high is not None
    assert third.low < 0.05 < third.high


@pytest.mark.parametrize(("metric", "size", "verdict"), [
    ("throughput", 0.04, "pass"), ("throughput", 0.06, "inconclusive"), ("forward", 0.06, "pass"),
])  # fmt: skip
def test_a_slow_machine_is_not_called_software_and_does_not_pass_beyond_the_limit_of_throughput(
    metric: str, size: float, verdict: str
) -> None:
    generator = _generator(3, 4)
    past = Past(generator.normal(0, 0.01, 60))
    both = generator.normal(size, 0.01, (12, 4))
    decided = decide(past, size, ALLOWED.of(metric), Answers((size,) * 4, both[:, :2], both[:, 2:]))
    assert (decided.verdict, decided.reason, decided.is_cleared) == (verdict, "machine", True)


@pytest.mark.parametrize(("slower", "verdict", "is_open"), [(0.0, "pass", False), (0.06, "drift", False)])
def test_a_question_that_an_ab_left_open_gets_an_ab_on_the_next_night(
    slower: float, verdict: str, is_open: bool
) -> None:
    generator = _generator(3, 5)
    past = Past(generator.normal(0, 0.01, 60))
    both = generator.normal(0.03, 0.05, (6, 4))
    undecided = decide(past, 0.06, ALLOWED, Answers((0.06,) * 4, both[:, :2], both[:, 2:]))
    assert (undecided.verdict, undecided.reason) == ("inconclusive", "unconfirmed")
    past = advance(past, 0.06, undecided)
    tonight = 0.028  # no detector reports it, and it does not rule the loss out
    assert decide(past, tonight, ALLOWED).needs == "reruns"
    assert decide(past, tonight, ALLOWED, Answers((0.01,) * 4)).needs == "ab"
    runs = generator.normal(0, 0.005, (8, 4))
    answers = Answers((0.01,) * 4, runs[:, :2] + slower, runs[:, 2:])
    decided = decide(past, tonight, ALLOWED, answers)
    assert (decided.verdict, decided.question is not None) == (verdict, is_open)
    unanswered = decide(past, tonight, ALLOWED, Answers((0.01,) * 4), software="unavailable")
    assert (unanswered.verdict, unanswered.reason) == ("inconclusive", "open-loss")


def test_what_reruns_do_not_show_went_away() -> None:
    past = Past(_generator(3, 4).normal(0, 0.01, 60))
    decided = decide(past, 0.06, ALLOWED, Answers(reruns=(0.0, 0.001, -0.002, 0.0)))
    assert (decided.verdict, decided.reason) == ("pass", "went-away")


def test_lost_reruns_leave_the_question_open_and_never_pass() -> None:
    past = Past(_generator(3, 4).normal(0, 0.01, 60))
    assert decide(past, 0.06, ALLOWED, Answers(reruns=())).verdict == "inconclusive"
    assert decide(past, 0.06, ALLOWED, Answers(reruns=(math.nan,))).verdict == "inconclusive"


@pytest.mark.parametrize("seed", range(4))
def test_the_boiling_frog_is_called_before_five_percent_are_lost(seed: int) -> None:
    lost = 0.001 * np.maximum(0, np.arange(120) - 20)
    _, result = run_nights(noise(seed, 120) * np.exp(-lost), accepted=[20, *range(50, 120, 30)])
    called = next(index for index, item in result if item.verdict == "drift")
    assert called > 20
    assert lost[called] < 0.05


def test_accepted_noise_is_no_loss_against_the_anchor() -> None:
    _, result = run_nights(noise(9, 150), accepted=[20, *range(50, 150, 30)])
    assert not [index for index, item in result if item.verdict == "drift"]


def test_a_step_a_faster_machine_and_a_creep_are_each_called_once_and_dated() -> None:
    values = noise(5, 260)
    values[80:] *= 0.92
    values[140:] *= 1.5
    values[200:] *= np.exp(-0.10 * np.arange(1, 61) / 60)
    rows = [{"hardware": "A10G" if index < 140 else "L4"} for index in range(260)]
    series, result = run_nights(values, rows)
    called = [(index, item.decision.onset) for index, item in result if item.decision.new]
    assert [onset.shape for _, onset in called if onset] == ["step", "creep"]
    assert [abs(onset.index - at) <= 4 for (_, onset), at in zip(called, (80, 200), strict=True) if onset] == [True] * 2
    assert [(boundary.index, boundary.what) for boundary in line_of(series).boundaries] == [(140, "hardware")]
    # Equal software: each loss alerts once, and is known then.
    assert sum(item.verdict == "drift" for _, item in result) == 2


def test_a_called_loss_that_is_gone_recovers() -> None:
    values = noise(6, 120)
    values[60:80] *= 0.9
    _, result = run_nights(values)
    verdicts = dict(result)
    assert verdicts[79].reason == "open-call"
    assert any(item.recovered for _, item in result)
    assert all(item.verdict != "drift" for index, item in result if index > 85)


def test_lasting_gain_asks_for_a_new_baseline() -> None:
    values = noise(7, 90)
    values[60:] *= 1.08
    _, result = run_nights(values)
    assert "drift" not in {item.verdict for _, item in result}
    gain = next(item.decision for _, item in result if item.reason == "improved")
    assert gain.onset is not None
    assert [gain.size, gain.onset.size] == pytest.approx([-math.log(1.08)] * 2, abs=0.01)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=70),
    st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.none()),
    st.integers(0, 80),
)
@example([0.0, 0.0, 0.0, 0.0, math.inf], 0.0, 0)
def test_no_series_raises_and_a_missing_night_never_passes(
    values: list[float], tonight: float | None, cut: int
) -> None:
    value = math.nan if tonight is None else tonight
    past = Past(np.array(values, dtype=np.float64), level=min(cut, len(values)))
    decided = decide(past, value, ALLOWED)
    if not math.isfinite(value):
        assert (decided.verdict, decided.reason) == ("inconclusive", "missing")
    elif np.isfinite(np.array(values)).sum() < 5:
        assert decided.verdict != "pass"


def test_a_series_is_ordered_by_time_not_by_the_name_of_its_round() -> None:
    values = np.arange(10.0) + 1
    series = series_of(values)
    from_behind = series_of(values[:0])
    for index in reversed(range(10)):
        row = night(index, {"throughput": float(values[index])}, round="smoke" if index == 3 else f"z{9 - index}")
        from_behind = extended(from_behind, [row])
    assert from_behind.time == series.time == tuple((BEGIN + timedelta(days=day)).timestamp() for day in range(10))
    assert from_behind.metrics == series.metrics


def test_a_part_that_grows_while_the_whole_does_not_is_a_shift_of_cost() -> None:
    def decided(throughput: float) -> dict[str, str]:
        series = SeriesFile(suite="nightly", platform="aws")
        wholes, parts = noise(3, 41), noise(4, 41, level=0.01)
        wholes[40], parts[40] = wholes[40] * throughput, parts[40] * 1.6
        rows = [
            night(index, {"throughput": float(whole), "data_wait": float(part)})
            for index, (whole, part) in enumerate(zip(wholes, parts, strict=True))
        ]
        lines = lines_of(extended(series, rows), METRICS)
        equal = dict.fromkeys((("bert", "throughput"), ("bert", "data_wait")), "equal")
        answers = {
            ("bert", line.metric.name): Answers(reruns=tuple(line.metric.scores(line.values[-1:]).tolist()) * 4)
            for line in lines
        }
        return {one.line.metric.name: one.reason for one in judge_lines(lines, ALLOWED, answers, equal)}

    assert decided(1.0) == {"throughput": "quiet", "data_wait": "shift"}
    lost = decided(0.85)
    assert lost["throughput"] == "machine"
    assert lost["data_wait"] != "shift"


def test_alternating_machine_classes_are_each_judged_by_their_own_nights() -> None:
    rows = [{"hardware": "A10G" if index % 3 else "L4"} for index in range(120)]
    values = noise(6, 120) * np.array([1.0 if index % 3 else 1.4 for index in range(120)])
    _, found = run_nights(values, rows)
    assert not [index for index, one in found if one.verdict == "drift"]
    values[100:] *= 0.9
    _, found = run_nights(values, rows)
    called = [index for index, one in found if one.decision.new]
    assert called, "both classes have a reference"
    assert 100 <= min(called) <= 112
