"""Taps: recorded module outputs, gradients and weights, as norms, digests and sketches.

Each tensor is summarised as soon as it is computed, so that no output waits for the end of the step; the device is read
once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.stage import Stage
from plumbline.train.batches import Batch
from plumbline.train.digests import host_array
from plumbline.train.engine import Engine, StepOutcome
from plumbline.train.failure import TrainingFailedError
from plumbline.train.replay import Keeper
from plumbline.train.watch.recorder import KEPT, Book, Tensors
from plumbline.train.watch.summaries import Rows, Summary, TensorSummary, read_rows


@dataclass
class _Output:
    """Output of one module, collected over micro-batches and processes.

    Only an output with rows of the batch has a piece per micro-batch. One computed from a buffer, such as a table of
    positions, is the same every time.
    """

    num_pieces: int
    summary: TensorSummary
    num_seen: int = 0
    captured: list[NDArray[Any]] = field(default_factory=list)


class ModuleTaps(Book[Summary]):
    """Book of all modules' outputs at chosen steps, over micro-batches and processes."""

    def __init__(
        self, engine: Engine, steps: Collection[int], keeper: Keeper | None = None, *, unsigned: bool = True
    ) -> None:
        """Create the book; `keeper` stores whole tensors on request, `unsigned` ignores the sign of zero."""
        super().__init__()
        # Without the engine, whose model would live as long as the hooks' cycle.
        self._ranks, self.steps, self.step = engine.ranks, steps, 0
        self._unsigned, self.keeper = unsigned, keeper or Keeper()
        self._parts, self._rows = engine.spec.optimizer.accumulation_steps, 0
        self._hooks = ExitStack()
        self._outputs: dict[str, _Output] = {}
        self._opened: list[tuple[Stage, str, TensorSummary]] = []
        self.fed: list[torch.Tensor] = []
        """Further tensors, whose values `read` has once the step is done."""
        self.read: list[NDArray[Any]] = []
        self._buffers: set[int] = set()

    def starts(self, step: int, model: nn.Module) -> None:
        """Hook the model if this step is recorded."""
        super().starts(step, model)
        self.step, self._outputs, self._opened, self.fed = step, {}, [], []
        if step in self.steps:
            self._buffers = {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
            self._hooks = self.calls.hook(model)

    def feeds(self, local: Batch) -> None:
        """Start a micro-batch's forward pass."""
        self._rows = len(local["labels"])
        super().feeds(local)

    def is_sketched(self, stage: Stage) -> bool:  # noqa: ARG002 - for other books
        """Return whether tensors of a stage are sketched in this step."""
        return True

    def _open(self, stage: Stage, name: str, value: torch.Tensor, shape: tuple[int, ...]) -> TensorSummary:
        opened = TensorSummary(value, shape, unsigned=self._unsigned, sketched=self.is_sketched(stage))
        self._opened.append((stage, name, opened))
        return opened

    def see(self, name: str, module: nn.Module, inputs: Any, value: torch.Tensor) -> None:  # noqa: ARG002
        """Add the output to its module's summary, at its place in the global batch."""
        found = self._outputs.get(name)
        if found is None:
            has_rows = value.dim() > 0 and value.shape[0] == self._rows and not self._is_constant(inputs)
            pieces = self._parts * self._ranks.world if has_rows else 1
            shape = (value.shape[0] * pieces, *value.shape[1:]) if value.dim() else ()
            found = self._outputs[name] = _Output(pieces, self._open("forward", name, value, shape))
        if found.num_pieces > 1 or not found.num_seen:
            first = self._ranks.rank * self._parts if found.num_pieces > 1 else 0
            found.summary.add(value, (first + found.num_seen) * value.numel())
            if self.keeper.wants("forward", self.step, name):
                array = host_array(value)
                # On the CPU the array shares the module's memory, which later work may overwrite.
                found.captured.append(array.copy() if value.device.type == "cpu" else array)
        found.num_seen += 1

    def _is_constant(self, inputs: Any) -> bool:
        return any(isinstance(i, torch.Tensor) and i.untyped_storage().data_ptr() in self._buffers for i in inputs)

    def end(self) -> None:
        """Stop recording outputs."""
        self._hooks.close()

    def keep(self, stage: Stage, tensors: Tensors) -> None:
        """Add whole tensors, which all processes have alike."""
        for name, value in tensors.items():
            self._open(stage, name, value, tuple(value.shape)).add(value)

    def done(self, outcome: StepOutcome, loss: float) -> None:  # noqa: ARG002 - as its base
        """Read all summaries from the device."""
        rows, self.read = read_rows([summary for _, _, summary in self._opened], self.fed)
        rows = self._over_processes(rows)
        self.kept = {stage: {} for stage in KEPT}
        for (stage, name, summary), row in zip(self._opened, rows, strict=True):
            self.kept[stage][name] = summary.read(*row)
        for name, found in self._outputs.items():
            if found.captured:
                own = np.concatenate(found.captured)
                whole = self._ranks.concatenate(own) if found.num_pieces > 1 else own
                if self._ranks.is_first:
                    self.keeper.keep("forward", self.step, name, whole)
        self._outputs, self._opened = {}, []

    def _over_processes(self, rows: Rows) -> Rows:
        """Sum the outputs' rows over processes, in the first one."""
        sizes = [found.summary.size for found in self._outputs.values()]
        shared = [place for place, found in enumerate(self._outputs.values()) if found.num_pieces > 1]
        if self._ranks.world > 1 and shared:
            numbers = self._collected([rows[place][0] for place in shared])
            sums = self._collected([[*rows[place][1], sizes[place]] for place in shared])
            for place, found, summed in zip(shared, numbers, sums, strict=False):  # empty in other processes
                rows[place], sizes[place] = (found, summed[:-1]), int(summed[-1])
        if self._ranks.is_first:
            self._check(sizes)
        return rows

    def _collected(self, values: Any) -> NDArray[Any]:
        """Return the sum of all processes' arrays in rank order, in the first process."""
        everyone = self._ranks.collect(torch.from_numpy(np.array(values)))
        return np.sum([each.numpy() for each in everyone], axis=0) if everyone else np.zeros(0)

    def _check(self, sizes: list[int]) -> None:
        for size, (name, found) in zip(sizes, self._outputs.items(), strict=True):
            if size != math.prod(found.summary.shape):
                raise TrainingFailedError(
                    f"{name} is not called in every micro-batch", code="error", part="probe", step=self.step
                )
