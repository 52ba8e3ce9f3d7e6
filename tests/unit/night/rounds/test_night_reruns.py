"""Which reruns a night asks for, and which of its decisions are new calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plumbline.judge.history.decision import Answers
from plumbline.judge.history.metrics import METRICS
from plumbline.judge.history.night import call_entry, judge_lines
from plumbline.judge.history.segments import lines_of
from plumbline.night.rounds.nights import PlatformNight, night_reruns
from tests.unit.judge.history.nights import ALLOWED, noise, series_of

KEY = ("bert", "throughput")
LINES = lines_of(series_of(noise(1, 48) / (1 + 0.09 * (np.arange(48) >= 40))), METRICS)
"""A loss of 9% in the last eight of 48 nights."""


@pytest.mark.parametrize(("count", "names"), [(1, ["rerun"]), (3, ["rerun", "rerun-2", "rerun-3"])])
def test_a_night_asks_for_as_many_reruns_as_the_suite_has(count: int, names: list[str]) -> None:
    nights = {"left": PlatformNight(judge_lines(LINES, ALLOWED, software={KEY: "equal"}))}
    assert [(one.platform, one.workload, one.what) for one in night_reruns(nights, count)] == [
        ("left", "bert", name) for name in names
    ]
    assert len(night_reruns(nights)) == 4


def test_a_shift_within_the_step_is_no_new_call() -> None:
    tonight = tuple(LINES[0].metric.scores(LINES[0].values[-1:]).tolist()) * 4
    (decided,) = judge_lines(LINES, ALLOWED, {KEY: Answers(reruns=tonight)}, {KEY: "equal"})
    entry = call_entry(decided)
    assert entry is not None
    assert (decided.verdict, entry.new, entry.size) == ("drift", True, pytest.approx(0.086, abs=0.01))
    shifted = call_entry(replace(decided, shifted=True))
    assert shifted is not None
    assert not shifted.new
