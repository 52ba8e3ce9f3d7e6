"""Rounds by the command line, in an empty folder, on real servers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROUND_SECONDS = 240
_LOG_TAIL = 6000


def processes_of(folder: Path) -> dict[int, str]:
    """Return every process whose command line or environment contains `folder`."""
    needle, result = str(folder).encode(), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if needle in command or needle in environment:
            result[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return result


@dataclass
class Round:
    """One `plumbline run`, running or ended."""

    process: subprocess.Popen
    folder: Path
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None

    def wait_for(self, words: str) -> None:
        """Return once the command has said `words`."""
        deadline = time.monotonic() + ROUND_SECONDS
        while not any(words in line for line in self.lines):
            assert time.monotonic() < deadline, f"never said {words!r}: {self.lines}"
            assert self.process.poll() is None, f"ended before it said {words!r}: {self.lines}"
            time.sleep(0.05)

    def kill_flow_run(self, flow: str) -> None:
        """Kill (SIGKILL) the process of a running flow run of this flow."""
        runs = [UUID(row["id"]) for row in read_flow_runs(self.folder, flow) if row["state_type"] == "RUNNING"]
        variables = {f"PREFECT__FLOW_RUN_ID={run}".encode() for run in runs}
        result = []
        for pid, command in processes_of(self.folder).items():
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if "prefect.engine" in command and variables.intersection(environment):
                    result.append(pid)
        assert result, f"no process of {runs} among {processes_of(self.folder)}"
        os.kill(min(result), signal.SIGKILL)

    def kill_each(self, words: str, times: int) -> None:
        """Kill (SIGKILL) so many processes whose command line contains `words`, as they appear."""
        deadline, killed = time.monotonic() + ROUND_SECONDS, set()
        while len(killed) < times:
            assert time.monotonic() < deadline, f"killed only {killed}: {self.lines}"
            assert self.process.poll() is None, f"ended with only {killed} killed: {self.lines}"
            for pid, command in processes_of(self.folder).items():
                if words in command and pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """Return the exit code and stdout."""
        stdout = self.process.stdout
        assert stdout
        assert self.reader
        # The command's own deadlines end it, and with it this read; stderr has a reader of its own.
        out = stdout.read()
        self.process.wait(ROUND_SECONDS)
        self.reader.join(10)
        return self.process.returncode, out

    def verdict(self) -> tuple[int, dict]:
        """Return the exit code and the printed JSON."""
        code, out = self.end()
        assert out.strip(), "".join(self.lines)
        return code, json.loads(out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Add the end of every log to a failed test."""
    report = yield
    folder = item.funcargs.get("folder")
    if report.when == "call" and report.failed and folder is not None:
        for log in sorted((folder / ".plumbline/logs").glob("*.log")):
            report.sections.append((log.name, log.read_text(errors="replace")[-_LOG_TAIL:]))
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return an empty working folder per module; check that no process is left."""
    folder = tmp_path_factory.mktemp("round")
    yield folder
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(folder):
    """Start `plumbline run SUITE --json`; whatever it leaves running fails the test."""
    begun = []

    def start(suite: Path, *options: str) -> Round:
        command = [sys.executable, "-m", "plumbline", "run", str(suite), "--json", *options]
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        round_ = Round(process, folder)
        stderr = process.stderr
        round_.reader = threading.Thread(target=lambda: round_.lines.extend(stderr), daemon=True)
        round_.reader.start()
        begun.append(round_)
        return round_

    yield start
    for round_ in begun:
        if round_.process.poll() is None:
            round_.process.send_signal(signal.SIGINT)
            round_.process.wait(60)
        round_.reader.join(10)
        round_.process.stdout.close()
        round_.process.stderr.close()
    assert_nothing_left(folder)


def assert_nothing_left(folder: Path) -> None:
    """Check that no process of a round is left, within a few seconds."""
    deadline = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def small(name: str, folder: Path, *, steps: int = 8, parts: str = "", extra: str = "") -> Path:
    """Write the local suite with a short probe, or with `parts`, into `folder`."""
    text = (ROOT / "deployments/suites/local.toml").read_text()
    start, end = text.index("[workloads.bert-tiny-reviews.probe]"), text.index("[platforms.aws-local]")
    probe = f"[workloads.bert-tiny-reviews.probe]\nsteps = {steps}\n"
    text = text[:start] + probe + parts + text[end:] + extra
    path = folder / f"{name}.toml"
    path.write_text(text.replace('name = "local"', f'name = "{name}"'))
    return path


def states(folder: Path, flow: str) -> list[str]:
    """Return the final states of a flow's runs, oldest first, as the Prefect server stored them."""
    return [row["state_type"] for row in read_flow_runs(folder, flow)]


def names(folder: Path, flow: str) -> list[str]:
    """Return the names of a flow's runs in Prefect's UI, oldest first."""
    return [row["name"] for row in read_flow_runs(folder, flow)]


def read_flow_runs(folder: Path, flow: str) -> list[sqlite3.Row]:
    """Return id, name and state_type of a flow's runs, oldest first."""
    database = next((folder / ".plumbline").rglob("prefect.db"))
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(
            "select run.id, run.name, run.state_type from flow_run run join flow on flow.id = run.flow_id"
            " where flow.name = ? order by run.created",
            (flow,),
        ).fetchall()
    connection.close()
    return rows
