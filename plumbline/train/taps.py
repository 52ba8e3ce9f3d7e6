"""Taps: module outputs and parameter gradients, as norms, digests and sketches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.digest import digest_array
from plumbline.schema.evidence import Tap, TapStage
from plumbline.sketch import sketch
from plumbline.train.digests import finite, host_array, norm
from plumbline.train.ranks import Ranks

__all__ = ["ModuleTaps", "TapBook", "first_tensor", "named_gradients", "with_first_tensor"]


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


class TapBook:
    """Collection of taps and sketches; `keep` receives each whole tensor."""

    def __init__(
        self, keep: Callable[[str, int, str, NDArray[Any]], None] | None = None, *, digests: bool = True
    ) -> None:
        self.taps: list[Tap] = []
        self.sketches: list[NDArray[np.float64]] = []
        self.keep, self._digests = keep, digests

    def add(
        self, step: int, stage: TapStage, name: str, array: NDArray[Any], *, kind: str, dtype: torch.dtype, leaf: bool
    ) -> None:
        """Summarise one tensor."""
        if self.keep:
            self.keep(stage, step, name, array)
        self.sketches.append(sketch(array))
        self.taps.append(
            Tap(
                step=step,
                stage=stage,
                name=name,
                kind=kind,
                dtype=str(dtype).removeprefix("torch."),
                shape=tuple(array.shape),
                norm=finite(norm(array)),
                sha256=digest_array(array) if self._digests else "0" * 64,
                leaf=leaf,
            )
        )

    def add_parameters(self, step: int, stage: TapStage, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Summarise one tensor per parameter."""
        for name, value in tensors.items():
            owner = model.get_submodule(name.rpartition(".")[0])
            self.add(
                step, stage, name, host_array(value), kind=type(owner).__name__, dtype=value.dtype,
                leaf=next(owner.children(), None) is None,
            )  # fmt: skip

    def matrix(self) -> NDArray[np.float64]:
        """Return all sketches, float64 [num_taps, 64]."""
        return np.stack(self.sketches) if self.sketches else np.zeros((0, 64))


class ModuleTaps:
    """Hooks that gather all modules' outputs of a step, over micro-batches and processes."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._ranks = ranks
        self._outputs: dict[str, list[NDArray[Any]]] = {}
        self._about: dict[str, tuple[str, torch.dtype, bool]] = {}
        self._calls: dict[str, int] = {}
        self._rows = 0
        self._buffers = {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
        self._constant: set[str] = set()
        self._handles = [
            module.register_forward_hook(self._hook(name or "model", module)) for name, module in model.named_modules()
        ]

    def _hook(self, name: str, module: nn.Module) -> Callable[[nn.Module, Any, Any], None]:
        leaf = next(module.children(), None) is None

        def hook(_module: nn.Module, inputs: Any, output: Any) -> None:
            value = first_tensor(output)
            if value is None:
                return
            calls = self._calls.get(name, 0)
            self._calls[name] = calls + 1
            key = f"{name}#{calls}" if calls else name
            self._about.setdefault(key, (type(module).__name__, value.dtype, leaf))
            if any(isinstance(i, torch.Tensor) and i.untyped_storage().data_ptr() in self._buffers for i in inputs):
                self._constant.add(key)
            array = host_array(value)
            # On the CPU the array shares the module's memory, which later work may overwrite.
            self._outputs.setdefault(key, []).append(array.copy() if value.device.type == "cpu" else array)

        return hook

    def feeds(self, rows: int) -> None:
        """Start a micro-batch of `rows`."""
        self._calls.clear()
        self._rows = rows

    def _whole(self, name: str, pieces: list[NDArray[Any]]) -> NDArray[Any]:
        """Concatenate a module's output over all micro-batches and processes.

        Only outputs with rows of the batch are concatenated; an output from a buffer, such as a table of positions, is
        the same every time.
        """
        first = pieces[0]
        if len(pieces) == 1 or name in self._constant or not first.ndim or first.shape[0] != self._rows:
            return first
        return np.concatenate(pieces)

    def summarise(self, book: TapBook, step: int) -> None:
        """Add a tap per module to `book`, over the global batch."""
        everyone = self._ranks.gather(self._outputs)
        for name in self._outputs:
            kind, dtype, leaf = self._about[name]
            whole = self._whole(name, [piece for outputs in everyone for piece in outputs[name]])
            book.add(step, "forward", name, whole, kind=kind, dtype=dtype, leaf=leaf)
        self._outputs.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
