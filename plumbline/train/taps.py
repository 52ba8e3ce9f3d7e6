"""Taps: recorded module outputs and gradients, as norms, digests and sketches.

Each tensor is summarised as soon as its module has computed it, so that no output waits for the end of the step.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.train.batches import Batch
from plumbline.train.digests import host_array
from plumbline.train.engine import Engine
from plumbline.train.failure import TrainingFailedError
from plumbline.train.recorder import Book, Stage, Tensors
from plumbline.train.replay import Keeper
from plumbline.train.summaries import DigestKind, Summaries, Summary, summarize


class _Output:
    """Output of one module, collected over micro-batches and processes.

    Only an output with rows of the batch has a piece per micro-batch. One computed from a buffer, such as a table of
    positions, is the same every time.
    """

    def __init__(self, value: torch.Tensor, num_pieces: int) -> None:
        self.num_pieces = num_pieces
        rows = value.shape[:1].numel() * num_pieces
        self.shape = (rows, *value.shape[1:]) if value.dim() else ()
        self.tensor: Any = None
        self.num_seen = 0
        self.waiting: list[list[torch.Tensor]] = []
        self.captured: list[NDArray[Any]] = []


class ModuleTaps(Book[Summary]):
    """Book of all modules' outputs at chosen steps, over micro-batches and processes."""

    def __init__(
        self, engine: Engine, steps: Collection[int], digests: DigestKind = "unsigned",
        keeper: Keeper | None = None,
    ) -> None:  # fmt: skip
        """Create the book; `keeper` stores whole tensors on request."""
        super().__init__()
        # Without the engine, whose model would live as long as the hooks' cycle.
        self._ranks, self.steps, self.step = engine.ranks, steps, 0
        self._digests, self.keeper = digests, keeper or Keeper()
        self._parts, self._rows = engine.spec.optimizer.accumulation_steps, 0
        self._hooks = ExitStack()
        self._summaries: Summaries | None = None
        self._outputs: dict[str, _Output] = {}
        self._buffers: set[int] = set()

    def starts(self, step: int, model: nn.Module) -> None:
        """Hook the model if this step is recorded."""
        self.step = step
        if step in self.steps:
            self._outputs, self._summaries = {}, Summaries(self._digests)
            self._buffers = {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
            self._hooks = self.calls.hook(model)

    def feeds(self, local: Batch) -> None:
        """Start a micro-batch's forward pass."""
        self._rows = len(local["labels"])
        super().feeds(local)

    def see(self, name: str, module: nn.Module, inputs: Any, value: torch.Tensor) -> None:  # noqa: ARG002
        """Add the output to its module's summary."""
        if self._summaries is None:
            return
        found = self._outputs.get(name)
        if found is None:
            has_rows = value.dim() > 0 and value.shape[0] == self._rows and not self._is_constant(inputs)
            found = self._outputs[name] = _Output(value, self._parts * self._ranks.world if has_rows else 1)
            found.tensor = self._summaries.open(value, found.shape)
        if found.num_pieces > 1 or not found.num_seen:
            self._add(name, found, value)
        found.num_seen += 1

    def _is_constant(self, inputs: Any) -> bool:
        return any(isinstance(i, torch.Tensor) and i.untyped_storage().data_ptr() in self._buffers for i in inputs)

    def _add(self, name: str, found: _Output, value: torch.Tensor) -> None:
        """Add a module's output, in the first process for all processes."""
        ranks, micro = self._ranks, found.num_seen
        is_shared = ranks.world > 1 and found.num_pieces > 1
        start = (ranks.rank * self._parts + micro) * value.numel() if is_shared else micro * value.numel()
        is_on_host = value.device.type == "cpu"
        if ranks.is_first or not is_on_host:
            found.tensor.add(value, start, is_hashed=ranks.is_first)
        self._capture(name, found, value)
        if not is_shared:
            return
        found.waiting.append(ranks.collect(value))
        if micro + 1 < self._parts or not ranks.is_first:
            return
        for rank in range(1, ranks.world):
            for pieces in found.waiting:
                found.tensor.add(pieces[rank], is_measured=is_on_host)
                self._capture(name, found, pieces[rank])
        found.waiting = []

    def _capture(self, name: str, found: _Output, value: torch.Tensor) -> None:
        if self._ranks.is_first and self.keeper.wants("forward", self.step, name):
            array = host_array(value)
            # On the CPU the array shares the module's memory, which later work may overwrite.
            found.captured.append(array.copy() if value.device.type == "cpu" else array)

    def keep(self, stage: Stage, tensors: Tensors) -> dict[str, Summary]:  # noqa: ARG002 - as its base
        """Return the summaries of whole tensors."""
        return dict(zip(tensors, summarize(tensors.values(), self._digests), strict=True))

    def end(self) -> dict[str, Summary]:
        """Return the summary of each module's output over the global batch."""
        collected, self._summaries = self._summaries, None
        if collected is None:
            return {}
        self._hooks.close()
        with closing(collected):
            summaries = self._read(collected)
        self._outputs = {}
        return summaries

    def _read(self, collected: Summaries) -> dict[str, Summary]:
        rows = collected.rows()
        if self._ranks.world > 1:
            rows = self._over_processes(rows)
        if not self._ranks.is_first:
            return {}
        missing = [name for name, found in self._outputs.items() if found.tensor.num_missing]
        if missing:
            raise TrainingFailedError(
                f"{missing[0]} is not called in every micro-batch", code="error", part="probe", step=self.step
            )
        for name, found in self._outputs.items():
            if found.captured:
                self.keeper.keep("forward", self.step, name, np.concatenate(found.captured))
        return dict(zip(self._outputs, collected.read(rows), strict=True))

    def _over_processes(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum all processes' device results by rank."""
        everyone = [each.numpy() for each in self._ranks.collect(torch.from_numpy(rows))]
        if not everyone:
            return rows
        total: NDArray[np.float64] = everyone[0].copy()
        for place, found in enumerate(self._outputs.values()):
            if found.num_pieces > 1:
                for other in everyone[1:]:
                    total[place] += other[place]
        return total
