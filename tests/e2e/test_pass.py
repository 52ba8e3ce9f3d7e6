"""The main job: two platforms pass, and a second night is held against the accepted first one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from plumbline.central import CentralStore
from plumbline.records import load_record
from plumbline.stores import open_store
from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def suite(folder):
    """Return the local suite with a wide throughput gate, as other tests slow its rounds."""
    path = folder / "local.toml"
    text = (ROOT / "deployments/suites/local.toml").read_text()
    assert "throughput_drop = 0.25" in text
    path.write_text(text.replace("throughput_drop = 0.25", "throughput_drop = 0.95"))
    return path


def plumbline(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "plumbline", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_two_platforms_train_the_same_and_the_round_passes(folder, start, suite):
    running = start(suite, "--keep")
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


def test_the_second_night_is_held_against_the_accepted_baseline(folder, start, suite):
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
    platforms = json.loads(history.stdout)["platforms"]
    assert {name: len(platform["nights"]) for name, platform in platforms.items()} == {"aws-local": 2, "azure-local": 2}
