"""A deliberate drift is found, named, and fails the flow."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import ROOT, names, states

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_the_cause_is_named_and_the_flow_fails(folder, start):
    exit_code, verdict = start(ROOT / "deployments/suites/local-drift.toml").verdict()
    assert (exit_code, verdict["verdict"]) == (1, "drift")
    assert verdict["platforms"]["aws-local"]["verdict"] == "pass"
    drifting = verdict["platforms"]["azure-local"]
    named = [(cause["code"], cause["sure"]) for cause in drifting["causes"]]
    assert named == [("data.labels", "confirmed")], drifting["causes"]
    assert drifting["first_divergence"]["step"] is not None
    assert drifting["first_divergence"]["stage"] == "data"
    assert drifting["first_divergence"]["row"] is not None
    assert "train/" in drifting["first_divergence"]["at"]
    assert states(folder, "plumbline-regression")[-1] == "FAILED"
    tried = [
        name
        for name in names(folder, "plumbline-training")
        if name.startswith("azure-local ") and " experiment: " in name
    ]
    assert bool(tried) == bool(drifting["causes"][0]["tried"])
