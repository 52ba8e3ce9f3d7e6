"""The main job, on one stack: a night passes and is accepted, the next drifts, a third is ended, and SIGKILL.

The second night's data has altered labels on one platform, and its controller and an experiment are killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from plumbline.data.stores import open_store
from plumbline.local import services
from plumbline.night.central import CentralStore
from tests.commands import run, run_plumbline
from tests.conftest import STRANGER, SYSTEM_PYTHON
from tests.e2e import other_user
from tests.e2e.conftest import ROUND_SECONDS, Round, assert_nothing_left, begin, marks_of, processes_of, shipped

pytestmark = [pytest.mark.e2e, pytest.mark.azurite]


@pytest.fixture(scope="module")
def suite(folder):
    """Return the local suite with a throughput gate that other tests' load cannot fail, nor make undecided.

    Load that begins in the middle of `speed` spreads its steps so widely that no drop is certain: the canary of the
    throughput gate is inconclusive then, and with it the round.
    """
    # Each training has every part of the shipped suite, with fewer rows and steps.
    return shipped("local", folder, {
        "train_rows = 4096": "train_rows = 512", "evaluation_rows = 1024": "evaluation_rows = 128",
        "rows_per_shard = 512": "rows_per_shard = 128", "batch_size = 16": "batch_size = 8",
        "sequence_length = 64": "sequence_length = 32",
        "steps = 12": "steps = 4\nportable_steps = 2", "steps = 40": "steps = 16",
        "steps = 120": 'steps = 40\nexpect = "chance"', "evaluate_every = 60": "evaluate_every = 20",
        "checkpoint_every = 60": "checkpoint_every = 20", "evaluation_rows = 256": "evaluation_rows = 64",
        "throughput_drop = 0.25 # two workers share one small machine; a quiet GPU holds 0.05":
        "throughput_drop = 0.95\nthroughput_standard_errors = 0",
    })  # fmt: skip


@pytest.fixture(scope="module")
def kept(folder: Path, suite: Path) -> Iterator[Round]:
    """Start a round whose servers and workers stay up."""
    # Open, as `plumbline init` makes it.
    (folder / ".plumbline").mkdir(mode=0o755)
    (folder / "README").write_text("of the project")
    running = begin(folder, suite, "--keep")
    yield running
    running.stop()


def test_two_platforms_train_the_same_and_the_round_passes(folder, kept, tmp_path):
    kept.wait_for("the stack stays up until Ctrl-C")
    verdict = json.loads(kept.process.stdout.readline())
    assert verdict["verdict"] == "pass"
    assert set(verdict["platforms"]) == {"aws-local", "azure-local"}
    central = CentralStore(open_store(f"file://{folder}/.plumbline/central"))
    evidence = {}
    for name, platform in verdict["platforms"].items():
        assert platform["verdict"] == "pass"
        assert 0 < platform["accuracy"] <= 1
        assert platform["samples_per_second"] > 0
        (record,) = platform["records"]
        loaded = central.get_record(record, tmp_path / record)
        probe = loaded.record.evidence.probe
        evidence[name] = [(step.batch, step.weights, step.generators) for step in probe.steps_of()]
        assert loaded.record.evidence.data.shards
    assert evidence["aws-local"] == evidence["azure-local"]
    assert [run.state_name for run in kept.flow_runs("plumbline-regression")] == ["Completed"]
    report = next((folder / ".plumbline/central/rounds").rglob("report.html")).read_text()
    assert "aws-local" in report
    assert any(note["code"] == "no-baseline" for note in verdict["platforms"]["aws-local"]["notes"])


@pytest.mark.other_user
def test_a_different_user_can_start_read_and_stop_nothing(folder, kept):
    """A different user of the machine reaches the loopback ports, and knows every address, path and process."""
    kept.wait_for("the stack stays up until Ctrl-C")
    processes = processes_of(folder)
    workers = [pid for pid, command in processes.items() if "worker start" in command]
    variables = "".join(Path(f"/proc/{pid}/environ").read_text() for pid in workers)
    names = ("AWS_ENDPOINT_URL=", "BlobEndpoint=")
    endpoints = [re.search(rf"{name}(http://[0-9.:]+)", variables)[1] for name in names]
    arguments = json.dumps([str(folder), kept.api_url, endpoints, list(processes)])
    program = ("/usr/bin/env", "-i", SYSTEM_PYTHON, "-c", Path(other_user.__file__).read_text())
    done = run(*program, arguments, cwd="/", user=STRANGER, group=STRANGER, extra_groups=[])
    assert json.loads(done.stdout) == ["list the project", "read README", "read local.toml"], done.stdout


def night(folder: Path, kept: Round, suite: Path) -> Round:
    """Start a round by the server of the stack that stays up."""
    return begin(
        folder, suite, "--api", environment=services.prefect_environment(kept.api_url, folder / "home", kept.login)
    )


def test_the_next_night_is_compared_with_the_accepted_one_and_its_drift_is_named(folder, kept, suite):
    run_plumbline("baseline", "accept", suite, cwd=folder)
    alter_labels(folder)
    running = night(folder, kept, suite)
    try:
        running.wait_for("trains probe")
        # Prefect starts the flow run again, which goes on with the trainings that it finds.
        kept.kill_flow_run("plumbline-regression")
        running.wait_for("confirming")
        running.kill_each("'plumbline.train'", 1)
        exit_code, verdict = running.verdict()
    finally:
        running.stop()
    assert (exit_code, verdict["verdict"]) == (1, "drift")
    accepted, drifting = (verdict["platforms"][name] for name in ("aws-local", "azure-local"))
    assert accepted["verdict"] == "pass"
    assert any(finding["against"].startswith("baseline") for finding in accepted["findings"])
    (throughput,) = (finding for finding in accepted["findings"] if finding["check"] == "speed.throughput")
    assert throughput["outcome"] == "pass"
    named = [(cause["code"], cause["sure"]) for cause in drifting["causes"]]
    assert named == [("data.labels", "confirmed")], drifting["causes"]
    first = drifting["first_divergence"]
    assert (first["stage"], first["step"] is None, first["row"] is None) == ("data", False, False)
    assert "train/" in first["at"]
    assert [run.state_name for run in kept.flow_runs("plumbline-regression")] == ["Completed", "Drift"]
    runs = kept.flow_runs("plumbline-training")
    tried = [run for run in runs if run.name.startswith("azure-local ") and " experiment: " in run.name]
    assert bool(tried) == bool(drifting["causes"][0]["tried"])


def alter_labels(folder: Path) -> None:
    """Alter a quarter of the labels in the store of one platform, with its worker's own credentials."""
    (worker, *_) = (
        pid for pid, command in processes_of(folder).items() if "worker start" in command and "azure-local" in command
    )
    variables = Path(f"/proc/{worker}/environ").read_text().rstrip("\0").split("\0")
    program = ["-m", "plumbline.local.altered_labels", "--data", "az://devstoreaccount1/plumbline-data"]
    subprocess.run(
        [sys.executable, *program, "--dataset", "reviews", "--share", "0.25"], check=True, timeout=ROUND_SECONDS,
        env=dict(variable.split("=", 1) for variable in variables),
    )  # fmt: skip


def test_history_tells_of_the_rounds(folder, suite):
    history = run_plumbline("history", suite, "--json", cwd=folder)
    platforms = json.loads(history.stdout)["platforms"]
    assert {name: len(platform["nights"]) for name, platform in platforms.items()} == {"aws-local": 2, "azure-local": 2}


def test_a_second_ctrl_c_does_not_wait_for_the_round_and_is_answered_once(folder, kept, suite):
    running = night(folder, kept, suite)
    try:
        running.wait_for("trains probe")
        running.process.send_signal(signal.SIGINT)
        running.wait_for("Ctrl-C again does not wait")
        running.process.send_signal(signal.SIGINT)
        code, out = running.end()
    finally:
        running.stop()
    assert code == 3
    assert json.loads(out)["error"]["message"] == "interrupted"


def kept_environments(login: str) -> list[Path]:
    """Return the files in which Prefect keeps the environments of this stack's flow runs, keys included."""
    found, depth = [], len(Path(tempfile.gettempdir()).parts) + 3
    for folder, folders, files in os.walk(tempfile.gettempdir()):  # passes over folders that end meanwhile
        if len(Path(folder).parts) > depth:
            folders.clear()  # others may have filled this place
        if "workspace.json" in files and Path(folder).name.startswith("prefect-workspace-attempt-"):
            with suppress(FileNotFoundError):
                file = Path(folder, "workspace.json")
                found += [file] if login in file.read_text() else []
    return found


def test_kill_9_of_the_command_leaves_nothing_while_a_round_trains(folder, kept):
    """Neither a process nor a database stays, and no environment with keys for a thief of the disk."""
    with kept.client() as client:
        deployed = client.read_deployment_by_name("plumbline-regression/local")
        client.create_flow_run_from_deployment(deployed.id)
    deadline = time.monotonic() + ROUND_SECONDS
    while not any("'plumbline.train'" in command for command in processes_of(folder).values()):
        assert time.monotonic() < deadline, kept.flow_runs("plumbline-regression")
        time.sleep(0.1)
    (own,) = {Path(tempfile.gettempdir(), f"plumbline-{mark}") for mark in marks_of(folder)}
    assert own.is_dir()
    workers = [pid for pid, command in processes_of(folder).items() if "worker start" in command]
    login = kept.login
    # Read first: what ends the stack begins with this folder.
    left = kept_environments(login)
    for pid in (kept.process.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    assert left, "Prefect keeps no environment any more: the stack needs no temporary folder of its own for it"
    assert all(file.is_relative_to(own) for file in left)
    kept.process.wait(120)
    assert_nothing_left(folder)
    deadline = time.monotonic() + 120
    while own.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
