"""One round of the fleet, its progress as the command shows it, and its processes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from drills.processes import TRAINER
from tests.flows.local_stack import RunningRound, RunningStack

__all__ = ["LOOK_SECONDS", "FleetNight"]

LOOK_SECONDS = 0.1
_STARTED = ("trains", "done", "failed", "is being cancelled")


class FleetNight:
    """One round of the fleet."""

    def __init__(self, stack: RunningStack, seed: int) -> None:
        self.stack = stack
        self.stub = stack.stack.state / "stub"
        self.round_id = f"{time.strftime('%Y%m%d-%H%M%S')}-fleet{seed}"
        self.clock: Path | None = None
        self.round: RunningRound | None = None
        self.second: RunningRound | None = None
        self.is_server_taken = False
        self.untouched: list[str] = []
        self._trainers: tuple[float, dict[str, int]] = (0.0, {})

    def start(self) -> None:
        """Start the round."""
        self.round = self.stack.start_round(round_id=self.round_id)

    def phase(self, platform: str) -> str:
        """Return the last phase that the command showed of a platform; empty before the first."""
        lines = list(self.round.lines) if self.round else []
        shown = [line.partition(": ")[2] for line in lines if line.startswith(f"{platform}: ")]
        return shown[-1] if shown else ""

    def num_started(self) -> int:
        """Return how many trainings have started."""
        return sum(self.phase(name).startswith(_STARTED) for name in self.stack.suite.platforms)

    def trainer(self, platform: str) -> int | None:
        """Return the process of a platform's training, read a few times a second."""
        now = time.monotonic()
        if now - self._trainers[0] > 3 * LOOK_SECONDS:
            result = {}
            for pid in self.stack.processes(TRAINER, f"--round-id {self.round_id}"):
                with suppress(OSError, ValueError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                    result[words[words.index("--platform") + 1]] = pid
            self._trainers = (now, result)
        return self._trainers[1].get(platform)

    def hold(self, platform: str) -> None:
        """Keep the platform's training from ending by itself."""
        (self.stub / "hold" / platform).touch()

    def kill_worker(self, platform: str) -> None:
        """Kill the platform's worker."""
        self.stack.kill("worker start", f"--pool {platform}-local")
