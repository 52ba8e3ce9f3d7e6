"""Ground for tests and drills: a real stack with a suite of two small trainings, and hands on its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from plumbline.controlling import Ended, follow
from plumbline.localstack import Stack
from plumbline.localstack.process import Child, marked, stop
from plumbline.localstack.servers import Database
from plumbline.schema.suite import Suite

__all__ = ["Follower", "Ground", "ground", "small_suite", "to_toml"]

_PLATFORMS = {
    "aws": {"data": "s3://plumbline-data/drill", "outbox": "s3://plumbline-outbox/drill"},
    "azure": {"data": "az://devstoreaccount1/data/drill", "outbox": "az://devstoreaccount1/outbox/drill"},
    "onprem": {"data": "file://{state}/onprem/data", "outbox": "file://{state}/onprem/outbox"},
}


def small_suite(
    state: Path, name: str = "drill", platforms: tuple[str, ...] = ("aws", "azure"), *, steps: int = 6, **more: Any
) -> Suite:
    """A suite whose trainings take a few seconds; `more` changes every platform."""
    limits = {"start_seconds": 40, "run_seconds": 90, **more}
    chosen = {
        key: {
            "work_pool": f"{key}-local",
            **{kind: url.format(state=state) for kind, url in _PLATFORMS[key].items()},
            **limits,
        }
        for key in platforms
    }
    probe = {"steps": steps, "evaluation_rows": 16, "envelope_seeds": 1}
    return Suite.model_validate(
        {
            "name": name,
            "store": f"file://{state}/central",
            "reference": platforms[0],
            "datasets": {"reviews": {"grammar_seed": 1, "train_rows": 256, "evaluation_rows": 64, "vocab_size": 512}},
            "workloads": {
                "tiny": {
                    "model": "tiny", "data": "reviews", "seed": 7, "batch_size": 8, "sequence_length": 32,
                    "probe": probe,
                }
            },
            "platforms": chosen,
        }
    )  # fmt: skip


class Follower:
    """One controller, followed in a thread: what it told, and how it ended."""

    def __init__(self, child: Child, tick: Callable[[], None], suite: Suite, round_id: str = "") -> None:
        self.child = child
        self.suite = suite
        self.round_id = round_id
        self.lanes: dict[str, list[dict[str, Any]]] = {}
        self.said: list[str] = []
        self.phases: list[str] = []
        self.took = 0.0
        self.waited_seconds = 0.0
        """What it waited for another round to end, which is no deadline of its own."""
        self._began = time.monotonic()
        self._ended: list[Ended] = []
        self._thread = threading.Thread(target=self._follow, args=(tick,))
        self._thread.start()

    def _follow(self, tick: Callable[[], None]) -> None:
        ended = follow(self.child, self._on_event, tick)
        self.took = time.monotonic() - self._began
        self._ended.append(ended)

    @property
    def over(self) -> bool:
        """Whether the controller has ended."""
        return bool(self._ended)

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "lane":
            self.lanes.setdefault(event["platform"], []).append(event)
        elif event["event"] == "say":
            self.said.append(event["message"])
        elif event["event"] == "phase":
            self.phases.append(event["name"])

    def lane(self, platform: str) -> dict[str, Any]:
        """What the controller said last of a platform; nothing, before it said anything."""
        return self.lanes.get(platform, [{"phase": "", "words": "", "attempt": 0}])[-1]

    def until(self, platform: str, phase: str, *, words: str = "", seconds: float = 60.0) -> None:
        """Return once the platform has reached the phase, and its progress the words."""
        deadline = time.monotonic() + seconds
        while not any(one["phase"] == phase and words in one["words"] for one in self.lanes.get(platform, [])):
            if time.monotonic() > deadline or self._ended:
                raise AssertionError(f"{platform} never came to {phase} {words}: {self.lanes.get(platform, [])[-1:]}")
            time.sleep(0.05)

    def until_said(self, words: str, seconds: float = 60.0) -> None:
        """Return once the controller has said these words."""
        deadline = time.monotonic() + seconds
        while not any(words in line for line in self.said):
            if time.monotonic() > deadline:
                raise AssertionError(f"it never said {words!r}: {self.said}")
            time.sleep(0.05)

    def until_phase(self, name: str, seconds: float = 90.0) -> None:
        """Return once the round is at this phase."""
        deadline = time.monotonic() + seconds
        while name not in self.phases:
            if time.monotonic() > deadline or self._ended:
                raise AssertionError(f"the round never came to {name}: {self.phases}")
            time.sleep(0.02)

    def end(self, seconds: float = 240.0) -> Ended:
        """Wait for the controller's end."""
        self._thread.join(seconds)
        if not self._ended:
            raise AssertionError(f"the round did not end within {seconds} s: {self.lanes}")
        return self._ended[0]

    def verdict(self, seconds: float = 240.0) -> dict[str, Any]:
        """The verdict that the controller ended with."""
        ended = self.end(seconds)
        if ended.event is None or "verdict" not in ended.event:
            raise AssertionError(f"no verdict: {ended}; see {self.child.log}")
        verdict: dict[str, Any] = ended.event["verdict"]
        return verdict


class Ground:
    """A stack that is up, and what a drill does to it."""

    def __init__(self, stack: Stack, suite: Suite) -> None:
        self.stack = stack
        self.suite = suite
        self._rounds = 0
        self._checking = threading.RLock()

    def _check(self) -> None:
        """Replace what died; two rounds may look at once, and while somebody holds it, nobody does."""
        if self._checking.acquire(blocking=False):
            try:
                self.stack.check()
            finally:
                self._checking.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """What dies meanwhile stays dead."""
        with self._checking:
            yield

    def stop_worker(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a platform's worker; nobody starts it again. One that does not listen is killed, as the stack does."""
        with self._checking:
            worker = self.stack._workers.pop(name)
        worker.process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(30)
        stop([worker], grace_seconds=0)

    def start_worker(self, name: str) -> None:
        """Start a platform's worker."""
        with self._checking:
            self.stack.start_workers([name])

    def forgive(self) -> None:
        """Forget how often each was started again: a night's count, and another night begins."""
        self.stack._restarts.clear()

    def start_round(self, suite: Suite | None = None, round_id: str = "", prefix: tuple[str, ...] = ()) -> Follower:
        """Start a controller on the suite; `prefix` stands before its command."""
        suite = suite or self.suite
        self._rounds += 1
        round_id = round_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{self._rounds}"
        path = self.stack.state / "suites" / f"{round_id}-{self._rounds}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
        options = ["--suite", str(path), "--round", round_id, "--state", str(self.stack.state), "--prepare"]
        command = [*prefix, sys.executable, "-m", "flows.controller", *options]
        child = self.stack.start_controller(command, log=f"controller-{round_id}-{self._rounds}")
        return Follower(child, self._check, suite, round_id)

    def until_online(self, *platforms: str, seconds: float = 40.0) -> None:
        """Return once the server holds the platforms' workers for online."""
        deadline = time.monotonic() + seconds
        for name in platforms:
            url = f"{self.stack.api_url}/work_pools/{self.suite.platforms[name].work_pool}/workers/filter"
            while not any(worker["status"] == "ONLINE" for worker in _post(url, {})):
                if time.monotonic() > deadline:
                    raise AssertionError(f"no worker of {name} came online")
                time.sleep(0.1)

    def clear(self) -> None:
        """After a drill that went wrong: let go of what it stopped, and end its round."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for pid in self.processes("flows.controller"):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while self.processes("flows.controller") and time.monotonic() < deadline:
            time.sleep(0.1)

    def processes(self, *words: str) -> list[int]:
        """The stack's processes whose command line or environment has all these words."""
        found = []
        for pid in marked(self.stack.mark):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(pid)
        return found

    def until_running(self, *words: str, seconds: float = 90.0) -> list[int]:
        """Return once there is such a process, with those that there are."""
        deadline = time.monotonic() + seconds
        while not (found := self.processes(*words)):
            if time.monotonic() > deadline:
                raise AssertionError(f"no process with {words}")
            time.sleep(0.05)
        return found

    def kill(self, *words: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Send a signal to every process whose command line has all these words; there must be one."""
        pids = self.until_running(*words, seconds=0)
        for pid in pids:
            os.kill(pid, number)
        return pids


def _post(url: str, content: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(content).encode(), headers)  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own server
        return json.load(answer)


def to_toml(content: dict[str, Any]) -> str:
    """A suite as TOML: every table inline, for a machine wrote it."""

    def value(one: Any) -> str:
        if isinstance(one, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(inner)}" for key, inner in one.items()) + "}"
        if isinstance(one, list):
            return "[" + ", ".join(value(inner) for inner in one) + "]"
        return json.dumps(one)

    return "\n".join(f"{key} = {value(one)}" for key, one in content.items() if one is not None)


@contextmanager
def ground(
    state: Path, platforms: tuple[str, ...] = ("aws", "azure"), without: tuple[str, ...] = (),
    suite: Suite | None = None, database: Database = "sqlite",
) -> Iterator[Ground]:  # fmt: skip
    """A stack for the small suite, or the one given; the platforms in `without` get no worker."""
    suite = suite or small_suite(state, platforms=platforms)
    platforms = tuple(suite.platforms)
    with Stack(suite, state, database=database, say=lambda line: print(f"    stack: {line}", flush=True)) as stack:
        stack.servers.wait_for_stores()
        stack.servers.wait_for_api()
        stack.prepare_pools()
        stack.start_workers([name for name in platforms if name not in without])
        this = Ground(stack, suite)
        this.until_online(*(name for name in platforms if name not in without))
        yield this
