"""Rounds by the command line, in an empty folder, on real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from plumbline.local.process import MARK

ROOT = Path(__file__).resolve().parents[2]
# A round takes 70 s alone, and several times as long beside others.
ROUND_SECONDS = 800
# The command gives its round 90 s to be cancelled.
_STOP_SECONDS = 120
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


def marks_of(folder: Path) -> set[str]:
    """Return the marks of the stacks of this folder."""
    marks = set()
    for pid in processes_of(folder):
        with suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            marks |= {value.removeprefix(f"{MARK}=") for value in variables if value.startswith(f"{MARK}=")}
    return marks


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

    @property
    def api_url(self) -> str:
        """Return the URL of the stack's Prefect API."""
        return f"{next(line.split()[-1] for line in self.lines if 'Prefect: http' in line)}/api"

    @property
    def login(self) -> str:
        """Return the login of the stack's Prefect server, from the file that the command names."""
        return Path(next(line.split()[-1] for line in self.lines if "its login" in line)).read_text().strip()

    @contextmanager
    def client(self) -> Iterator[SyncPrefectClient]:
        """Return a client of the stack's server."""
        settings = {PREFECT_API_URL: self.api_url, PREFECT_API_AUTH_STRING: self.login}
        with temporary_settings(settings), get_client(sync_client=True) as client:
            yield client

    def flow_runs(self, flow: str) -> list[FlowRun]:
        """Return a flow's runs on the stack's server, oldest first."""
        with self.client() as client:
            named = FlowFilter(name=FlowFilterName(any_=[flow]))
            return client.read_flow_runs(flow_filter=named, sort=FlowRunSort.EXPECTED_START_TIME_ASC)

    def kill_flow_run(self, flow: str) -> None:
        """Kill (SIGKILL) the process of a running flow run of this flow."""
        runs = [run.id for run in self.flow_runs(flow) if run.state is not None and run.state.is_running()]
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

    def stop(self) -> None:
        """Interrupt the command if it still runs, and kill it if it goes on all the same."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
                self.process.wait(_STOP_SECONDS)
        finally:
            self.process.kill()
            self.process.wait(10)
            self.reader.join(10)
            self.process.stdout.close()
            self.process.stderr.close()

    def verdict_and_runs(self, *flows: str) -> tuple[int, dict, list[list[FlowRun]]]:
        """Return exit code and JSON of a round with `--keep`, and each flow's runs."""
        self.wait_for("the stack stays up until Ctrl-C")
        runs = [self.flow_runs(flow) for flow in flows]
        self.process.send_signal(signal.SIGINT)
        return *self.verdict(), runs

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
def folder():
    """Yield an empty working folder per module, which each user may enter; end what is left.

    Each start of pytest closes the folders of all its temporary paths to other users.
    """
    with tempfile.TemporaryDirectory(prefix="round-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder
        for pid in processes_of(folder):
            os.kill(pid, signal.SIGKILL)


def begin(folder: Path, suite: Path, *options: str, environment: Mapping[str, str] | None = None) -> Round:
    """Start `plumbline run SUITE --json` in `folder`; the caller stops it."""
    command = [sys.executable, "-m", "plumbline", "run", str(suite), "--json", *options]
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    round_ = Round(process, folder)
    stderr = process.stderr
    round_.reader = threading.Thread(target=lambda: round_.lines.extend(stderr), daemon=True)
    round_.reader.start()
    return round_


@pytest.fixture
def start(folder):
    """Start `plumbline run SUITE --json`; whatever it leaves running fails the test."""
    begun = []

    def start(suite: Path, *options: str) -> Round:
        begun.append(begin(folder, suite, *options))
        return begun[-1]

    yield start
    for round_ in begun:
        round_.stop()
    assert_nothing_left(folder)


def assert_nothing_left(folder: Path) -> None:
    """Check that no process of a round is left, within a few seconds."""
    deadline = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def shipped(name: str, folder: Path, changes: dict[str, str]) -> Path:
    """Write a shipped suite with these changes of its lines into `folder`."""
    text = (ROOT / f"deployments/suites/{name}.toml").read_text()
    for old, new in changes.items():
        assert text.count(f"{old}\n") == 1, old
        text = text.replace(f"{old}\n", f"{new}\n")
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path
