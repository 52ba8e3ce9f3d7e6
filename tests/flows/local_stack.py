"""Local stack for tests and drills: a small suite on stock servers, with process access."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from plumbline.local.process import find_by_mark, stop
from plumbline.local.stack import CONTROLLERS, Stack
from plumbline.night.dispatch import job_key, record_id
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.flow_runs import read_pool
from tests.flows.small_suite import small_suite, to_toml


class RunningRound:
    """One `plumbline run --api` on the stack, with its output and exit code."""

    def __init__(self, child: subprocess.Popen[str], suite: Suite, round_id: str) -> None:
        self.child = child
        self.suite = suite
        self.round_id = round_id
        self.lines: list[str] = []
        """What it said, without the seconds."""
        self.took = 0.0
        self.waited_seconds = 0.0
        """How long it waited for another round to end, which is not a deadline of its own."""
        self._began = time.monotonic()
        self._out = ""
        self._threads = [threading.Thread(target=self._read_lines), threading.Thread(target=self._read_out)]
        for thread in self._threads:
            thread.start()

    def record(self, platform: str, attempt: int) -> str:
        """Return the record id of an attempt of the workload `tiny`."""
        return record_id(job_key(self.suite.name, self.round_id, platform, "tiny"), attempt)

    def _read_lines(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append(re.sub(r"^ *[0-9.]+ s  ", "", line.rstrip("\n")))

    def _read_out(self) -> None:
        self._out = self.child.stdout.read()
        self.child.wait()
        self.took = time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Return whether the command has ended."""
        return self.child.poll() is not None

    def until_said(self, words: str, seconds: float = 300.0) -> None:
        """Wait for a printed line with these words, such as `aws: trains probe`."""
        deadline = time.monotonic() + seconds
        while not any(words in line for line in list(self.lines)):
            if time.monotonic() > deadline or self.over:
                raise AssertionError(f"it never said {words!r}: {self.lines}")
            time.sleep(0.05)

    def until(self, platform: str, phase: str, seconds: float = 300.0) -> None:
        """Wait until the platform is shown in the phase."""
        self.until_said(f"{platform}: {phase}", seconds)

    def end(self, seconds: float = 600.0) -> int:
        """Wait for the command's end; return its exit code."""
        for thread in self._threads:
            thread.join(seconds)
        if not self.over:
            raise AssertionError(f"the round did not end within {seconds} s: {self.lines[-5:]}")
        return self.child.returncode

    def verdict(self, seconds: float = 600.0) -> dict[str, Any]:
        """Wait for the command's end; return the printed verdict."""
        code = self.end(seconds)
        if not self._out.strip():
            raise AssertionError(f"no verdict, exit code {code}: {self.lines[-3:]}")
        verdict: dict[str, Any] = json.loads(self._out)
        return verdict


class RunningStack:
    """Running stack, with the actions of a drill."""

    def __init__(self, stack: Stack, suite: Suite) -> None:
        self.stack = stack
        self.suite = suite
        self._rounds = 0
        self._commands: list[subprocess.Popen[str]] = []
        self._ended = threading.Event()
        self._checking = threading.RLock()
        self._checker = threading.Thread(target=self._check, daemon=True)
        self._checker.start()

    def _check(self) -> None:
        """Restart dead processes like `plumbline run`, except held ones."""
        while not self._ended.wait(0.2):
            with self._checking:
                self.stack.check()

    def close(self) -> None:
        """End the commands that still run."""
        self._ended.set()
        self._checker.join()
        for child in self._commands:
            if child.poll() is None:
                child.kill()
                child.wait()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Restart no process inside the block."""
        with self._checking:
            yield

    def stop_worker(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop a worker for good; kill it if it does not react."""
        with self._checking:
            worker = self.stack._workers.pop(name)
        worker.process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(120)
        stop([worker], grace_seconds=0)

    def start_worker(self, name: str) -> None:
        """Start a worker."""
        with self._checking:
            self.stack.start_workers([name])

    def forgive(self) -> None:
        """Forget how often each process was restarted."""
        self.stack._restarts.clear()

    def write_suite(self, suite: Suite) -> Path:
        """Write the suite as a file."""
        self._rounds += 1
        path = self.stack.state / "suites" / f"{suite.name}-{self._rounds}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
        return path

    def command(self, *words: str, seconds: float = 300) -> str:
        """Run `plumbline WORDS` with the controller's environment; return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "plumbline", *words], env=self.stack.environment(), capture_output=True, text=True,
            check=False, timeout=seconds,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"plumbline {' '.join(words)}: {(done.stdout + done.stderr)[-800:]}")
        return done.stdout

    def deploy(self, suite: Suite | None = None, *options: str) -> Path:
        """Deploy a suite and publish its data; return its file."""
        path = self.write_suite(suite or self.suite)
        self.command("deploy", str(path), "--publish", "--state", str(self.stack.state), *options)
        return path

    def start_round(self, suite: Suite | None = None, round_id: str = "", prefix: tuple[str, ...] = ()) -> RunningRound:
        """Deploy the suite and start a round; `prefix` precedes the command."""
        path = self.deploy(suite)
        return self.start_deployed(path, suite or self.suite, round_id, prefix)

    def start_deployed(
        self, path: Path, suite: Suite, round_id: str = "", prefix: tuple[str, ...] = ()
    ) -> RunningRound:
        """Start a round of a suite that is deployed."""
        round_id = round_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{self._rounds}"
        options = ["run", str(path), "--api", "--json", "--round", round_id, "--state", str(self.stack.state)]
        child = subprocess.Popen(
            [*prefix, sys.executable, "-m", "plumbline", *options], env=self.stack.environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._commands.append(child)
        return RunningRound(child, suite, round_id)

    def controllers(self) -> list[int]:
        """Return the processes of the rounds' flow runs."""
        return self.processes_in("plumbline.flows.regression.regression")

    def processes_in(self, entrypoint: str) -> list[int]:
        """Return the stack's flow-run processes of one entrypoint."""
        with self._client() as client:
            wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])))
            runs = {
                str(run.id)
                for run in client.read_flow_runs(flow_run_filter=wanted)
                if run.deployment_id is not None and client.read_deployment(run.deployment_id).entrypoint == entrypoint
            }
        result = []
        for pid in find_by_mark(self.stack.mark):
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if "prefect" in line and any(f"PREFECT__FLOW_RUN_ID={run}" in environment for run in runs):
                    result.append(pid)
        return result

    @contextmanager
    def _client(self) -> Iterator[SyncPrefectClient]:
        with (
            temporary_settings({PREFECT_API_URL: self.stack.api_url, PREFECT_API_AUTH_STRING: self.stack.login}),
            get_client(sync_client=True) as client,
        ):
            yield client

    def until_online(self, *names: str, seconds: float = 300.0) -> None:
        """Wait until workers of each platform, or of the controllers, are online."""
        deadline = time.monotonic() + seconds
        with self._client() as client:
            for name in names:
                pool = name if name == CONTROLLERS else self.suite.platforms[name].work_pool
                while (health := read_pool(client, pool)) is None or not health.is_online:
                    if time.monotonic() > deadline:
                        raise AssertionError(f"no worker of {name} came online")
                    time.sleep(0.1)

    def clear(self) -> None:
        """Release stopped processes after a failed drill, and end its round."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for child in self._commands:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)  # it cancels its round
                with suppress(subprocess.TimeoutExpired):
                    child.wait(120)

    def processes(self, *words: str) -> list[int]:
        """Return the stack's processes whose command line or environment has all words."""
        result = []
        for pid in find_by_mark(self.stack.mark):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if all(word in line for word in words):
                result.append(pid)
        return result

    def until_running(self, *words: str, seconds: float = 300.0) -> list[int]:
        """Wait for such processes, and return them."""
        deadline = time.monotonic() + seconds
        while not (result := self.processes(*words)):
            if time.monotonic() > deadline:
                raise AssertionError(f"no process with {words}")
            time.sleep(0.05)
        return result

    def kill(self, *words: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Send a signal to every process whose command line has all words."""
        pids = self.until_running(*words, seconds=0)
        for pid in pids:
            os.kill(pid, number)
        return pids


@contextmanager
def running_stack(
    state: Path, platforms: tuple[str, ...] = ("aws", "azure"), without: tuple[str, ...] = (),
    suite: Suite | None = None,
) -> Iterator[RunningStack]:  # fmt: skip
    """Start a stack for the small or given suite; platforms in `without` get no worker."""
    suite = suite or small_suite(state, platforms=platforms)
    names = [*(name for name in suite.platforms if name not in without), CONTROLLERS]
    with Stack(suite, state, say=lambda line: print(f"    stack: {line}", flush=True)) as stack:
        stack.wait_until_ready()
        running = RunningStack(stack, suite)
        try:
            running.deploy(None)
            stack.start_workers(names)
            running.until_online(*names)
            yield running
        finally:
            running.close()
