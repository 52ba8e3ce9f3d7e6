"""A second night against an accepted baseline, and what history and report tell of both."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import small

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PARTS = """
[workloads.bert-tiny-reviews.speed]
steps = 20
precision = "fp32"
[workloads.bert-tiny-reviews.learn]
steps = 12
evaluate_every = 6
checkpoint_every = 6
evaluation_rows = 64
"""


@pytest.fixture(scope="module")
def suite(folder):
    path = small("e2e", folder, parts=PARTS)
    # Other rounds run beside it: throughput has tests of its own.
    path.write_text(path.read_text().replace("throughput_drop = 0.25", "throughput_drop = 0.95"))
    return path


def plumbline(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "plumbline", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_the_second_night_is_held_against_the_accepted_baseline(folder, start, suite):
    assert start(suite).verdict()[0] == 0
    accepted = plumbline(folder, "baseline", "accept", str(suite))
    assert accepted.returncode == 0, accepted.stderr
    code, verdict = start(suite).verdict()
    assert code == 0
    for platform in verdict["platforms"].values():
        against = {finding["against"] for finding in platform["findings"]}
        assert any(name.startswith("baseline") for name in against), against
        throughput = [finding for finding in platform["findings"] if finding["check"] == "speed.throughput"]
        assert throughput
        assert throughput[0]["outcome"] == "pass"


def test_history_and_report_tell_of_the_rounds(folder, suite):
    history = plumbline(folder, "history", str(suite), "--json")
    assert history.returncode == 0, history.stderr
    assert json.loads(history.stdout)
