"""What the nights say of the learned model: accuracy, evaluation loss, and memory, which change with the software."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from plumbline.judge.gates.accuracy import learn
from plumbline.judge.history.allowed import allowed_for, learned_margins
from plumbline.judge.history.decision import Answers
from plumbline.judge.history.metrics import METRICS, extended
from plumbline.judge.history.night import LineDecision, judge_lines
from plumbline.judge.history.segments import lines_of
from plumbline.judge.pair import Pair
from plumbline.night.rounds.night_findings import apply_nights, past_nights
from plumbline.night.rounds.nights import PlatformNight, limits_of
from plumbline.schema.series import NightRow, SeriesFile
from plumbline.schema.suite import Dispatch, Gates, Suite
from plumbline.schema.verdict import Finding, PlatformResult
from tests.kept_results import keep
from tests.unit.judge.made_records import learned
from tests.unit.night.rounds.test_nights import BEGIN, suite_of

MARGIN = 0.02
SUITE = suite_of(Path("/x"), accuracy_margin=MARGIN)
UNSURE = Pair(learned(0.85, (0.7, 0.5), "a"), learned(0.829, (0.7, 0.6), "b"))
"""Two runs whose accuracies alone decide nothing."""


def tonight(
    values: Sequence[float],
    metric: str = "accuracy",
    software: Sequence[str] | None = None,
    pair: Pair | None = None,
    *,
    is_kept: bool = True,
) -> tuple[PlatformResult, LineDecision]:
    """Judge the last of these nights; its reruns repeat it."""
    keys = software or ["s"] * len(values)
    rows = [
        NightRow(
            record=f"r{index:03d}", round=f"round-{index}", time=BEGIN + timedelta(days=index), workload="unit",
            spec="s", lock="l", hardware="h", software=key, metrics={metric: float(value)},
        )
        for index, (value, key) in enumerate(zip(values, keys, strict=True))
    ]  # fmt: skip
    (line,) = lines_of(extended(SeriesFile(suite="nightly", platform="left"), rows), METRICS)
    key = ("unit", metric)
    again = Answers(reruns=tuple(line.metric.scores(line.values[-1:]).tolist()))
    (decided,) = judge_lines([line], limits_of(SUITE), {key: again}, {key: "unavailable"})
    nights = {"left": PlatformNight((decided,))}
    equal = past_nights(nights, MARGIN)["unit"]["left"].equal_accuracy
    findings = (Finding(check="probe.equality", outcome="pass"),)
    if pair is not None:
        findings = tuple(learn(pair, Gates(accuracy_margin=MARGIN), equal))
    result = PlatformResult(verdict=findings[0].outcome, findings=findings)
    judged = apply_nights({"unit": {"left": result}}, nights, MARGIN)["unit"]["left"]
    return keep(judged) if is_kept else judged, decided


def noisy(level: float, sd: float, count: int, seed: int = 0) -> list[float]:
    return (level + np.random.default_rng(seed).normal(0, sd, count)).tolist()


def test_many_nights_resolve_what_one_pair_of_runs_cannot() -> None:
    same, _ = tonight(noisy(0.85, 0.005, 60), pair=UNSURE)
    assert same.verdict == "pass"
    assert "equivalent within 0.02" in str(same.notes[0].text)
    lost, _ = tonight([*noisy(0.85, 0.005, 45), *noisy(0.80, 0.005, 5)], pair=UNSURE)
    assert lost.verdict == "drift"
    assert {finding.check for finding in lost.findings if finding.outcome == "drift"} == {"history.accuracy"}


def test_nights_of_one_lock_are_one_value() -> None:
    # Each lock of seven nights ends at its own seed's accuracy: no number of its nights makes it another software.
    vouched = 0
    for seed in range(20):
        ends = np.random.default_rng(seed).normal(0.85, 0.0137, 10)
        values, software = np.repeat(ends, 7).tolist(), [f"lock-{night // 7}" for night in range(70)]
        result, _ = tonight(values, software=software, pair=UNSURE, is_kept=False)
        assert not [finding for finding in result.findings if "equivalence" in finding.check]
        vouched += result.verdict == "pass"
    assert vouched <= 2
    close = np.repeat(np.random.default_rng(1).normal(0.85, 0.004, 10), 7).tolist()
    assert tonight(close, software=software, pair=UNSURE, is_kept=False)[0].verdict == "pass"


@pytest.mark.parametrize("lost", [MARGIN, 1.5 * MARGIN])
def test_a_lock_at_or_beyond_the_margin_is_seldom_vouched_for(lost: float) -> None:
    # The level is 5% at the margin; two of forty are expected at most.
    vouched = 0
    for seed in range(40):
        ends = np.random.default_rng(seed).normal(0.85, 0.004, 10)
        values = np.repeat([*ends[:9], ends[9] - lost], 7).tolist()
        software = [f"lock-{night // 7}" for night in range(70)]
        result, decided = tonight(values, software=software, pair=UNSURE, is_kept=False)
        vouched += result.verdict == "pass"
        assert decided.verdict != "drift" or decided.reason == "lasting"
    assert vouched <= 4, vouched


@pytest.mark.parametrize("sd", [0.0, 0.003, 0.01])
@pytest.mark.parametrize("lost", [0.025, 0.03, 0.04, 0.05])
@pytest.mark.parametrize("upgraded", [True, False])
def test_the_first_nights_of_an_accuracy_loss_never_pass(sd: float, lost: float, upgraded: bool) -> None:
    for seed in range(3):
        before = noisy(0.9, sd, 40, seed)
        for night in range(1, 9):
            after = [0.9 - lost, *noisy(0.9 - lost, sd, night - 1, seed + 10)][::-1]
            software = ["a"] * 40 + ["b" if upgraded else "a"] * night
            result, decided = tonight([*before, *after], software=software, pair=UNSURE, is_kept=False)
            assert result.verdict != "pass", (seed, night, decided.decision.reason)


def test_nights_by_earlier_software_vouch_for_no_night() -> None:
    values = noisy(0.85, 0.005, 60)
    upgraded = ["a"] * 59 + ["b"]
    assert tonight(values, software=upgraded, pair=UNSURE)[0].verdict == "inconclusive"
    assert tonight(values, software=["a"] * 46 + ["b"] * 14, pair=UNSURE)[0].verdict == "inconclusive"


def upgraded(before: float, after: float, nights: int, metric: str = "accuracy", past: int = 22):
    values = [before] * past + [after] * nights
    return tonight(values, metric, software=["a"] * past + ["b"] * nights)


@pytest.mark.parametrize(
    ("metric", "before", "benign", "harmful"),
    [
        ("accuracy", 0.900, 0.892, 0.870),
        ("evaluation_loss", 0.300, 0.304, 0.340),  # exp(-loss) loses 0.003, and 0.029
        ("evaluation_loss", 4.0, 4.1, 4.3),
        ("peak_memory", 8.00e9, 8.08e9, 8.5e9),
    ],
)
def test_an_upgrade_moves_a_deterministic_metric_within_its_margin(
    metric: str, before: float, benign: float, harmful: float
) -> None:
    for nights in (1, 4, 5, 6, 8, 20):
        result, decided = upgraded(before, benign, nights, metric)
        assert (result.verdict, decided.needs) == ("pass", ""), (nights, decided.decision.reason)
    result, decided = upgraded(before, benign, 5, metric)
    assert decided.decision.reason == "too-small"
    assert "since 2026-01-23" in str(result.notes[0].text)
    result, decided = upgraded(before, harmful, 5, metric)
    assert (result.verdict, decided.decision.reason) == ("drift", "lasting")
    for nights in range(1, 5):
        assert upgraded(before, harmful, nights, metric)[1].verdict != "pass"


def test_the_margin_of_the_accuracy_is_the_suites_on_both_sides() -> None:
    assert upgraded(0.9, 0.9 - MARGIN + 1e-4, 5)[0].verdict == "pass"
    assert upgraded(0.9, 0.9 - MARGIN - 1e-4, 5)[0].verdict == "drift"
    # One lost night beyond the margin is not a pass because the nights before were within it.
    values = [0.9] * 22 + [0.892] * 6 + [0.85]
    assert tonight(values)[1].verdict == "inconclusive"
    # A lucky night of a loss beyond the margin is not a pass either.
    assert tonight([0.9] * 22 + [0.87] * 5 + [0.885])[1].verdict != "pass"


def test_a_gain_of_accuracy_within_the_margin_asks_for_no_new_baseline() -> None:
    assert upgraded(0.9, 0.908, 12)[0].improved == ()
    assert upgraded(0.9, 0.93, 12)[0].improved == ("accuracy",)


def test_the_limits_of_a_suite_are_those_of_its_series_gates_and_experiments() -> None:
    content = SUITE.to_json()
    (workload,), (platform,) = content["workloads"].values(), content["platforms"].values()
    content["workloads"] = {f"w{number}": workload for number in range(3)}
    content["platforms"] = dict.fromkeys(("left", "a", "b", "c", "d"), platform)
    content["gates"] |= {"throughput_drop": 0.08, "false_alarms_a_year": 3.0, "questions_a_year": 40.0}
    content["dispatch"] |= {"reruns": 2, "ab_blocks": 5}
    gates = Gates(accuracy_margin=MARGIN, throughput_drop=0.08, false_alarms_a_year=3.0, questions_a_year=40.0)
    assert limits_of(Suite.model_validate(content)) == allowed_for(
        num_platforms=5, num_series=5 * 3 * len(METRICS), gates=gates, dispatch=Dispatch(reruns=2, ab_blocks=5),
        margins=learned_margins(gates),
    )  # fmt: skip
