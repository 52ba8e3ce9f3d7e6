"""One round of the fleet, and hands on it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from tests.flows.drill.checks import TRAINER
from tests.flows.ground import Follower, Ground

__all__ = ["LOOK_SECONDS", "Night"]

LOOK_SECONDS = 0.1


class Night:
    """One round of the fleet, and hands on it."""

    def __init__(self, this: Ground, seed: int) -> None:
        self.this = this
        self.stub = this.stack.state / "stub"
        self.round_id = f"{time.strftime('%Y%m%d-%H%M%S')}-fleet{seed}"
        self.clock: Path | None = None
        self.one: Follower | None = None
        self.second: Follower | None = None
        self.server_taken = False
        self.untouched: list[str] = []
        self._trainers: tuple[float, dict[str, int]] = (0.0, {})

    def start(self, prefix: tuple[str, ...] = ()) -> None:
        self.one = self.this.start_round(round_id=self.round_id, prefix=prefix)

    def phase(self, platform: str) -> str:
        return str(self.one.lane(platform)["phase"]) if self.one else ""

    def running(self) -> int:
        return sum(self.phase(name) in ("running", "settling", "done") for name in self.this.suite.platforms)

    def trainer(self, platform: str) -> int | None:
        """The process of a platform's training; looked for a few times a second for all platforms together."""
        now = time.monotonic()
        if now - self._trainers[0] > 3 * LOOK_SECONDS:
            found = {}
            for pid in self.this.processes(TRAINER, f"--round-id {self.round_id}"):
                with suppress(OSError, ValueError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                    found[words[words.index("--platform") + 1]] = pid
            self._trainers = (now, found)
        return self._trainers[1].get(platform)

    def hold(self, platform: str) -> None:
        """Its training does not end by itself."""
        (self.stub / "hold" / platform).touch()

    def kill_worker(self, platform: str) -> None:
        self.this.kill("worker start", f"--pool {platform}-local")
