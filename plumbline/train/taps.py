"""Taps: recorded module outputs and gradients, as norms, digests and sketches.

Each tensor is summarised as soon as its module has computed it, so that no output waits for the end of the step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.evidence import Tap, TapStage
from plumbline.train.batches import Batch
from plumbline.train.calls import ModuleCalls
from plumbline.train.digests import finite, host_array
from plumbline.train.engine import Engine
from plumbline.train.failure import TrainingFailedError
from plumbline.train.summaries import DigestKind, Summaries, Summary, summarize


def named_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters' gradients, in model order."""
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


class _TensorStore(Protocol):
    """Interface of a store for requested whole tensors."""

    def wants(self, rung: Any, step: int, name: str = "") -> bool: ...

    def keep(self, rung: Any, step: int, name: str, array: NDArray[Any]) -> None: ...


class TapBook:
    """Collection of recorded tensors' summaries; `capture` stores whole tensors on request."""

    def __init__(self, capture: _TensorStore | None = None, *, digests: DigestKind = "signed") -> None:
        self.taps: list[Tap] = []
        self.sketches: list[NDArray[np.float64]] = []
        self.capture, self.digests = capture, digests

    def add(self, step: int, stage: TapStage, name: str, summary: Summary, *, kind: str, leaf: bool) -> None:
        """Add one tensor's summary."""
        self.sketches.append(summary.sketch)
        self.taps.append(
            Tap(
                step=step,
                stage=stage,
                name=name,
                kind=kind,
                dtype=str(summary.dtype).removeprefix("torch."),
                shape=summary.shape,
                norm=finite(summary.norm),
                sha256=summary.sha256 if self.digests == "signed" else "0" * 64,
                leaf=leaf,
            )
        )

    def add_parameters(self, step: int, stage: TapStage, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Add the summaries of one tensor per parameter."""
        for name, value in tensors.items():
            if self.capture and self.capture.wants(stage, step, name):
                self.capture.keep(stage, step, name, host_array(value))
        for name, summary in zip(tensors, summarize(tensors.values(), self.digests), strict=True):
            owner = model.get_submodule(name.rpartition(".")[0])
            leaf = next(owner.children(), None) is None
            self.add(step, stage, name, summary, kind=type(owner).__name__, leaf=leaf)

    def matrix(self) -> NDArray[np.float64]:
        """Return all sketches, float64 [num_taps, 64]."""
        return np.stack(self.sketches) if self.sketches else np.zeros((0, 64))


class _Output:
    """Output of one module, collected over micro-batches and processes.

    Only an output with rows of the batch has a piece per micro-batch. One computed from a buffer, such as a table of
    positions, is the same every time.
    """

    def __init__(self, kind: str, value: torch.Tensor, *, leaf: bool, num_pieces: int) -> None:
        self.kind, self.leaf, self.num_pieces = kind, leaf, num_pieces
        rows = value.shape[:1].numel() * num_pieces
        self.shape = (rows, *value.shape[1:]) if value.dim() else ()
        self.tensor: Any = None
        self.num_seen = 0
        self.waiting: list[list[torch.Tensor]] = []
        self.captured: list[NDArray[Any]] = []


class ModuleTaps:
    """Recorder of all modules' outputs at chosen steps, over micro-batches and processes."""

    def __init__(self, engine: Engine, book: TapBook, steps: Collection[int]) -> None:
        self._ranks, self._parts = engine.ranks, engine.spec.optimizer.accumulation_steps
        self._book, self.steps = book, steps
        self._calls, self._hooks = ModuleCalls(self._see), ExitStack()
        self._summaries: Summaries | None = None
        self._outputs: dict[str, _Output] = {}
        self._buffers: set[int] = set()
        self._step = self._rows = 0

    def starts(self, step: int, model: nn.Module) -> None:
        """Hook the model if this step is recorded."""
        self._step = step
        if step in self.steps:
            self._outputs, self._summaries = {}, Summaries(self._book.digests)
            self._buffers = {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
            self._hooks = self._calls.hook(model)

    def feeds(self, local: Batch) -> None:
        """Start a micro-batch's forward pass."""
        self._rows = len(local["labels"])
        self._calls.feeds()

    def forward_done(self, outputs: Any) -> None:  # noqa: ARG002 - a recorder gives them
        """End a micro-batch's forward pass."""
        self._calls.forward_done()

    def _see(self, name: str, module: nn.Module, inputs: Any, value: torch.Tensor) -> None:
        if self._summaries is None:
            return
        found = self._outputs.get(name)
        if found is None:
            has_rows = value.dim() > 0 and value.shape[0] == self._rows and not self._is_constant(inputs)
            found = self._outputs[name] = _Output(
                type(module).__name__, value, leaf=next(module.children(), None) is None,
                num_pieces=self._parts * self._ranks.world if has_rows else 1,
            )  # fmt: skip
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
        capture = self._book.capture
        if capture is not None and self._ranks.is_first and capture.wants("forward", self._step, name):
            array = host_array(value)
            # On the CPU the array shares the module's memory, which later work may overwrite.
            found.captured.append(array.copy() if value.device.type == "cpu" else array)

    def end(self) -> dict[str, Summary] | None:
        """Record each module's output over the global batch; return the summaries."""
        collected, self._summaries = self._summaries, None
        if collected is None:
            return None
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
                f"{missing[0]} is not called in every micro-batch", code="error", part="probe", step=self._step
            )
        summaries = dict(zip(self._outputs, collected.read(rows), strict=True))
        for name, summary in summaries.items():
            found = self._outputs[name]
            if found.captured and self._book.capture:
                self._book.capture.keep("forward", self._step, name, np.concatenate(found.captured))
            self._book.add(self._step, "forward", name, summary, kind=found.kind, leaf=found.leaf)
        return summaries

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
