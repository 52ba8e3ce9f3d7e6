"""What the nights say of the learned model: accuracy, evaluation loss, and memory, which change with the software."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from plumbline.history.decision import Answers
from plumbline.history.metrics import METRICS
from plumbline.history.night import LineDecision, judge_lines
from plumbline.history.segments import lines_of
from plumbline.history.series import NightRow, SeriesFile, extended
from plumbline.rounds.night_findings import apply_nights
from plumbline.rounds.nights import NightDecisions, limits_of
from plumbline.schema.verdict import Finding, PlatformResult
from tests.unit.rounds.test_nights import BEGIN, suite_of

MARGIN = 0.02
SUITE = suite_of(Path("/x"), accuracy_margin=MARGIN)
UNSURE = Finding(
    check="learn.accuracy", outcome="inconclusive", observed=-0.021, limit=MARGIN, against="baseline r000", detail="d"
)


def tonight(
    values: Sequence[float],
    metric: str = "accuracy",
    software: Sequence[str] | None = None,
    find: Finding | None = None,
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
    findings = (find or Finding(check="probe.equality", outcome="pass"),)
    result = PlatformResult(verdict=findings[0].outcome, findings=findings)
    nights = NightDecisions({"left": (decided,)})
    return apply_nights({"unit": {"left": result}}, nights, MARGIN)["unit"]["left"], decided


def noisy(level: float, sd: float, count: int, seed: int = 0) -> list[float]:
    return (level + np.random.default_rng(seed).normal(0, sd, count)).tolist()


def test_many_nights_resolve_what_one_pair_of_runs_cannot() -> None:
    same, _ = tonight(noisy(0.85, 0.005, 60), find=UNSURE)
    assert same.verdict == "pass"
    assert "equivalent within 0.02" in str(same.notes[0])
    lost, _ = tonight([*noisy(0.85, 0.005, 45), *noisy(0.80, 0.005, 15)], find=UNSURE)
    assert lost.verdict == "drift"
    assert any(finding.check == "history.accuracy.equivalence" for finding in lost.findings)


@pytest.mark.parametrize("sd", [0.0, 0.003, 0.01])
@pytest.mark.parametrize("lost", [0.025, 0.03, 0.04, 0.05])
@pytest.mark.parametrize("upgraded", [True, False])
def test_the_first_nights_of_an_accuracy_loss_never_pass(sd: float, lost: float, upgraded: bool) -> None:
    for seed in range(3):
        before = noisy(0.9, sd, 40, seed)
        for night in range(1, 9):
            after = [0.9 - lost, *noisy(0.9 - lost, sd, night - 1, seed + 10)][::-1]
            software = ["a"] * 40 + ["b" if upgraded else "a"] * night
            result, decided = tonight([*before, *after], software=software, find=UNSURE)
            assert result.verdict != "pass", (seed, night, decided.decision.reason)


def test_nights_by_earlier_software_vouch_for_no_night() -> None:
    values = noisy(0.85, 0.005, 60)
    upgraded = ["a"] * 59 + ["b"]
    assert tonight(values, software=upgraded, find=UNSURE)[0].verdict == "inconclusive"
    assert tonight(values, software=["a"] * 46 + ["b"] * 14, find=UNSURE)[0].verdict == "pass"
