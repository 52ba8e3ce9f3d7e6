"""The shipped suite of a deliberate drift: it is found, named, and fails the flow."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import shipped

pytestmark = [pytest.mark.long, pytest.mark.azurite]


def test_the_cause_is_named_and_the_flow_fails(folder, start):
    suite = shipped("local-drift", folder, {
        "train_rows = 4096": "train_rows = 1024", "evaluation_rows = 1024": "evaluation_rows = 128",
        "rows_per_shard = 512": "rows_per_shard = 256", "sequence_length = 64": "sequence_length = 32",
        "steps = 20": "steps = 40\nportable_steps = 2", "steps = 120": "steps = 4",
        "evaluate_every = 60": "evaluate_every = 2", "checkpoint_every = 60": "checkpoint_every = 2",
        "evaluation_rows = 256": 'evaluation_rows = 64\nexpect = "chance"',
    })  # fmt: skip
    running = start(suite, "--keep")
    exit_code, verdict, (rounds,) = running.verdict_and_runs("plumbline-regression")
    assert (exit_code, verdict["verdict"]) == (1, "drift")
    assert verdict["platforms"]["aws-local"]["verdict"] == "pass"
    drifting = verdict["platforms"]["azure-local"]
    named = [(cause["code"], cause["sure"]) for cause in drifting["causes"]]
    assert named == [("data.labels", "confirmed")], drifting["causes"]
    assert [run.state_name for run in rounds] == ["Drift"]
