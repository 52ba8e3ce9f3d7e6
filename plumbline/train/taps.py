"""Taps: module outputs and parameter gradients, as norms, digests and sketches.

Each tensor is summarised as soon as its module has computed it, so that no output waits for the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.evidence import Tap, TapStage
from plumbline.train.batches import Batch
from plumbline.train.digests import finite, host_array
from plumbline.train.engine import Engine, Observer
from plumbline.train.failure import TrainingFailedError
from plumbline.train.ranks import Ranks
from plumbline.train.summaries import DigestKind, Summaries, Summary, is_summarizing, summarize


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return a module's main output: the first float tensor, or a model's logits."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    logits = getattr(output, "logits", None)
    if logits is not None:
        return first_tensor(logits)
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((tensor for tensor in map(first_tensor, output) if tensor is not None), None)
    return None


def with_first_tensor(output: Any, value: torch.Tensor) -> Any:
    """Return `output` with its first tensor replaced."""
    if isinstance(output, torch.Tensor):
        return value
    if isinstance(output, tuple) and type(output) is tuple:
        places = [place for place, entry in enumerate(output) if first_tensor(entry) is not None]
        return tuple(
            with_first_tensor(entry, value) if places and place == places[0] else entry
            for place, entry in enumerate(output)
        )
    if isinstance(output, dict):
        key = "logits" if "logits" in output else next(k for k, v in output.items() if first_tensor(v) is not None)
        output[key] = value
        return output
    raise TypeError(f"no tensor can be put into a {type(output).__name__}")


def named_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter's gradient, in model order."""
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


class TensorStore(Protocol):
    """Store of whole tensors, of which each is asked for by name."""

    def wants(self, rung: Any, step: int, name: str = "") -> bool:
        """Return whether the tensor is kept."""
        ...

    def keep(self, rung: str, step: int, name: str, array: NDArray[Any]) -> None:
        """Keep the tensor."""
        ...


class TapBook:
    """Collection of taps and sketches; `capture` receives the whole tensors that it wants."""

    def __init__(self, capture: TensorStore | None = None, *, digests: DigestKind = "signed") -> None:
        self.taps: list[Tap] = []
        self.sketches: list[NDArray[np.float64]] = []
        self.capture, self.digests = capture, digests

    def add(self, step: int, stage: TapStage, name: str, summary: Summary, *, kind: str, leaf: bool) -> None:
        """Add the tap of one summarised tensor."""
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
        """Summarise one tensor per parameter."""
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
    """Output of one module over the micro-batches of all processes.

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
    """Hooks that summarise all modules' outputs of a step, over micro-batches and processes."""

    def __init__(self, model: nn.Module, ranks: Ranks, book: TapBook, step: int, *, micro_batches: int) -> None:
        self._ranks, self._book, self._step, self._parts = ranks, book, step, micro_batches
        self._summaries = Summaries(book.digests)
        self._outputs: dict[str, _Output] = {}
        self._calls: dict[str, int] = {}
        self._rows = 0
        self._is_forward = False
        self._buffers = {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
        self._handles = [
            module.register_forward_hook(self._hook(name or "model", module)) for name, module in model.named_modules()
        ]

    def _hook(self, name: str, module: nn.Module) -> Callable[[nn.Module, Any, Any], None]:
        leaf, kind = next(module.children(), None) is None, type(module).__name__

        def hook(_module: nn.Module, inputs: Any, output: Any) -> None:
            value = first_tensor(output)
            if value is None or not self._is_forward or is_summarizing():
                return
            calls = self._calls.get(name, 0)
            self._calls[name] = calls + 1
            key = f"{name}#{calls}" if calls else name
            found = self._outputs.get(key)
            if found is None:
                has_rows = value.dim() > 0 and value.shape[0] == self._rows and not self._is_constant(inputs)
                num_pieces = self._parts * self._ranks.world if has_rows else 1
                found = self._outputs[key] = _Output(kind, value, leaf=leaf, num_pieces=num_pieces)
                found.tensor = self._summaries.open(value, found.shape)
            if found.num_pieces > 1 or not found.num_seen:
                self._add(key, found, value)
            found.num_seen += 1

        return hook

    def _is_constant(self, inputs: Any) -> bool:
        return any(isinstance(i, torch.Tensor) and i.untyped_storage().data_ptr() in self._buffers for i in inputs)

    def _add(self, name: str, found: _Output, value: torch.Tensor) -> None:
        """Add this process's piece, and in the first process the others': all of one process before the next."""
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

    def feeds(self, rows: int) -> None:
        """Start the forward pass of a micro-batch of `rows`."""
        self._calls.clear()
        self._rows, self._is_forward = rows, True

    def forward_done(self) -> None:
        """End a forward pass: modules called again in the backward pass have been seen."""
        self._is_forward = False

    def summarise(self) -> dict[str, Summary]:
        """Add a tap per module to the book, over the global batch, and return the summaries by name."""
        rows = self._summaries.rows()
        if self._ranks.world > 1:
            rows = self._over_processes(rows)
        if not self._ranks.is_first:
            return {}
        missing = [name for name, found in self._outputs.items() if found.tensor.num_missing]
        if missing:
            raise TrainingFailedError(
                f"{missing[0]} is not called in every micro-batch", code="error", part="probe", step=self._step
            )
        summaries = dict(zip(self._outputs, self._summaries.read(rows), strict=True))
        for name, summary in summaries.items():
            found = self._outputs[name]
            if found.captured and self._book.capture:
                self._book.capture.keep("forward", self._step, name, np.concatenate(found.captured))
            self._book.add(self._step, "forward", name, summary, kind=found.kind, leaf=found.leaf)
        self._outputs = {}
        return summaries

    def _over_processes(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add the numbers of all processes' devices by rank; the first process has measured what is in main memory."""
        everyone = [each.numpy() for each in self._ranks.collect(torch.from_numpy(rows))]
        if not everyone:
            return rows
        total: NDArray[np.float64] = everyone[0].copy()
        for place, found in enumerate(self._outputs.values()):
            if found.num_pieces > 1:
                for other in everyone[1:]:
                    total[place] += other[place]
        return total

    def close(self) -> None:
        """Remove the hooks."""
        self._summaries.close()
        for handle in self._handles:
            handle.remove()


def module_taps(engine: Engine, book: TapBook, step: int) -> ModuleTaps:
    """Return hooks on the engine's model for one step."""
    micro_batches = engine.spec.optimizer.accumulation_steps
    return ModuleTaps(engine.bare, engine.ranks, book, step, micro_batches=micro_batches)


class TapObserver(Observer):
    """Observer that taps all modules at some steps."""

    def __init__(self, engine: Engine, book: TapBook, steps: Collection[int]) -> None:
        self.engine, self.book, self._tap_steps = engine, book, steps
        self.step = 0
        self._taps: ModuleTaps | None = None

    def starts(self, step: int) -> None:
        """Start taps if due."""
        self.step = step
        if step in self._tap_steps:
            self._taps = module_taps(self.engine, self.book, step)

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        """Start a micro-batch."""
        if self._taps:
            self._taps.feeds(len(local["labels"]))

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:  # noqa: ARG002 - as above
        """End a forward pass."""
        if self._taps:
            self._taps.forward_done()

    def summarised(self) -> dict[str, Summary] | None:
        """End the step's taps; return the outputs' summaries, `None` at a step without taps."""
        taps, self._taps = self._taps, None
        if taps is None:
            return None
        summaries = taps.summarise()
        taps.close()
        return summaries
