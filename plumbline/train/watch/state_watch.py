"""Watch that detects changes of weights and optimizer state outside updates.

What an evaluation or a checkpoint changes shows in the run itself, without a reference. So does a process whose reduced
gradients or weights are not those of the first one, at its first such step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from plumbline.schema.evidence import Inconsistency, WatchedEvent, WatchedPart
from plumbline.train.checkpoint import read_moments
from plumbline.train.digests import checksum, host_array, host_arrays
from plumbline.train.engine import Engine, read_losses
from plumbline.train.ranks import Ranks

_MOST = 100


class StateWatch:
    """Checksums of weights and optimizer state around evaluations and checkpoints."""

    def __init__(self, engine: Engine, ranks: Ranks, found: list[dict[str, Any]]) -> None:
        self._engine, self._ranks, self._found = engine, ranks, found
        self._mine: list[Inconsistency] = []
        self._known: set[tuple[WatchedPart, WatchedEvent]] = set()
        self._held: tuple[WatchedEvent, dict[WatchedPart, bytes]] | None = None
        self._left: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        """(step, norm of its gradients, checksum of the weights after it), not compared yet."""

    def _sums(self) -> dict[WatchedPart, bytes]:
        engine = self._engine
        parts: dict[WatchedPart, Any] = {"weights": engine.bare.parameters(), "moments": read_moments(engine).values()}
        device = self._ranks.device
        return {part: host_array(checksum(tensors, device)).tobytes() for part, tensors in parts.items()}

    def held(self, event: WatchedEvent) -> None:
        """Store the state's checksums before an evaluation or checkpoint."""
        self._held = (event, self._sums())

    def starts(self, step: int) -> None:
        """Compare the processes' weights before the first step."""
        everyone = self._ranks.gather(self._sums()["weights"])
        if everyone[self._ranks.rank] != everyone[0]:
            self.add(step, "weights", "processes")
        self._gather()

    def stepped(self, step: int, norm: torch.Tensor) -> None:
        """Store what a step of several processes left, without device synchronisation."""
        if self._ranks.world > 1:
            self._left.append((step, norm, checksum(self._engine.bare.parameters(), self._ranks.device)))

    def compare(self) -> None:
        """Compare the processes' gradients and weights since the last call."""
        left, self._left = self._left, []
        norms, sums = read_losses(norm for _, norm, _ in left), host_arrays([weights for *_, weights in left])
        mine = [(np.float64(norm).tobytes(), each.tobytes()) for norm, each in zip(norms, sums, strict=True)]
        for (step, *_), (norm, weights), first in zip(left, mine, self._ranks.gather(mine)[0], strict=True):
            if norm != first[0]:
                self.add(step, "gradients", "processes")
            if weights != first[1]:
                self.add(step + 1, "weights", "processes")
        self._gather()

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
