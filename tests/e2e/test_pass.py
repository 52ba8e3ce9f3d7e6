"""The main job: a round of two platforms passes."""

from __future__ import annotations

import pytest

from plumbline.central import CentralStore
from plumbline.records import load_record
from plumbline.stores import open_store
from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_two_platforms_train_the_same_and_the_round_passes(folder, start):
    running = start(ROOT / "deployments/suites/local.toml", "--keep")
    code, verdict, (rounds,) = running.verdict_and_runs("plumbline-regression")
    assert (code, verdict["verdict"]) == (0, "pass")
    assert set(verdict["platforms"]) == {"aws-local", "azure-local"}
    central = CentralStore(open_store(f"file://{folder}/.plumbline/central"))
    evidence = {}
    for name, platform in verdict["platforms"].items():
        assert platform["verdict"] == "pass"
        assert platform["accuracy"] > 0.7
        assert platform["samples_per_second"] > 0
        (record,) = platform["records"]
        loaded = load_record(central.get_record(record, folder / "gathered" / record))
        probe = loaded.record.evidence.probe
        evidence[name] = [(step.batch, step.weights_sha256, step.rng) for step in probe.steps]
        assert loaded.record.evidence.data.shards
    assert evidence["aws-local"] == evidence["azure-local"]
    assert [run.state_name for run in rounds] == ["Completed"]
    report = next((folder / ".plumbline/central/rounds").rglob("report.html")).read_text()
    assert "aws-local" in report
    assert any(note["code"] == "no-baseline" for note in verdict["platforms"]["aws-local"]["notes"])
