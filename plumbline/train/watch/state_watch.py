"""Watch that detects changes of weights and optimizer state outside updates.

What an evaluation or a checkpoint changes shows in the run itself, without a reference.
"""

from __future__ import annotations

from typing import Any

from plumbline.schema.step_log import Inconsistency, WatchedEvent, WatchedPart
from plumbline.train.checkpoint import read_moments
from plumbline.train.digests import checksum, host_array
from plumbline.train.engine import Engine
from plumbline.train.ranks import Ranks

_MOST = 100


class StateWatch:
    """Checksums of weights and optimizer state around evaluations and checkpoints."""

    def __init__(self, engine: Engine, ranks: Ranks, found: list[dict[str, Any]]) -> None:
        self._engine, self._ranks, self._found = engine, ranks, found
        self._mine: list[Inconsistency] = []
        self._known: set[tuple[WatchedPart, WatchedEvent]] = set()
        self._held: tuple[WatchedEvent, dict[WatchedPart, bytes]] | None = None

    def _sums(self) -> dict[WatchedPart, bytes]:
        engine = self._engine
        parts: dict[WatchedPart, Any] = {"weights": engine.bare.parameters(), "moments": read_moments(engine).values()}
        device = self._ranks.device
        return {part: host_array(checksum(tensors, device)).tobytes() for part, tensors in parts.items()}

    def held(self, event: WatchedEvent) -> None:
        """Store the state's checksums before an evaluation or checkpoint."""
        self._held = (event, self._sums())

    def released(self, step: int) -> None:
        """Compare the state with the stored checksums, if any."""
        if self._held is None:
            return
        (event, before), self._held = self._held, None
        after = self._sums()
        for part in before:
            if before[part] != after[part]:
                self.add(step, part, event)
        self._gather()

    def add(self, step: int, part: WatchedPart, event: WatchedEvent) -> None:
        """Record the first inconsistency of each part and event."""
        if (part, event) not in self._known:
            self._known.add((part, event))
            self._mine.append(Inconsistency(step=step, rank=self._ranks.rank, part=part, event=event))

    def _gather(self) -> None:
        """Collect the inconsistencies of all processes."""
        everyone = [each for mine in self._ranks.gather(self._mine) for each in mine]
        self._mine = []
        self._found += [each.to_json() for each in everyone][: _MOST - len(self._found)]
