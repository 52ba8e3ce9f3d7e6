"""What a worker's poll costs the Prefect server: the local stack's, beside the one that Prefect starts itself.

    python bench/dispatch/polls.py --out bench/results/polls.json

Both on SQLite, with the same settings, each with one work pool that holds nothing to do. They are polled by turns, a
batch at a time; counted is the processor's time of the server's process over the batch and a pause after it, in which
it does what the polls left it to do, less what it takes in as much time when nobody asks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from plumbline.localstack.asking import ask
from plumbline.localstack.services import free_port, prefect_environment

_WARM, _BATCH, _PAUSE_SECONDS = 50, 100, 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_COMMANDS = {
    "prefect": ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port"],
    "plumbline": ["-m", "tasks.serving", "--port"],
}


@dataclass
class Server:
    """A server's process, and where it answers."""

    process: subprocess.Popen[bytes]
    url: str

    def cpu(self) -> float:
        """Seconds of a processor so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def batch(self, polls: int) -> float:
        """Seconds of a processor that so many polls and the pause after them take."""
        before = self.cpu()
        for _ in range(polls):
            ask(f"{self.url}/work_pools/one/get_scheduled_flow_runs", {})
        time.sleep(_PAUSE_SECONDS)
        return self.cpu() - before


@contextmanager
def serving(options: list[str], home: Path) -> Iterator[Server]:
    """A server of its own, until the end."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {**os.environ, **prefect_environment(url, home)}
    process = subprocess.Popen(
        [sys.executable, *options, str(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        ask(f"{url}/work_pools/", {"name": "one", "type": "process"})
        yield Server(process, url)
    finally:
        process.terminate()
        process.wait()


def measure(folder: Path, repeat: int) -> dict[str, Any]:
    """Milliseconds a poll, by server."""
    found: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(options, folder / name)) for name, options in _COMMANDS.items()}
        for server in servers.values():
            server.batch(_WARM)
        for _ in range(repeat):
            for name, server in servers.items():
                idle = server.batch(0) / _PAUSE_SECONDS
                began = time.monotonic()
                spent = server.batch(_BATCH)
                found[name].append(round(1000 * (spent - idle * (time.monotonic() - began)) / _BATCH, 2))
                print(name, found[name][-1], "ms a poll", flush=True)
    return {name: {"median_ms": statistics.median(lot), "ms": lot} for name, lot in found.items()}


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plumbline-polls-") as folder:
        found = measure(Path(folder), args.repeat)
    ratio = round(found["plumbline"]["median_ms"] / found["prefect"]["median_ms"], 3)
    place = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({name: one["median_ms"] for name, one in found.items()} | {"ratio": ratio}))
    if args.out:
        args.out.write_text(json.dumps({"place": place, "ratio": ratio, **found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
