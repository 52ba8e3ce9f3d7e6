"""Observe a model's module calls in order and by name: `NAME`, then `NAME#1` for a repetition in one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from plumbline.train.watch.summaries import is_summarizing


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return a module's main output: its first float tensor, or the logits."""
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


def hookable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules that take hooks, by name: all but scripted ones."""
    return ((name, each) for name, each in model.named_modules() if not isinstance(each, torch.jit.ScriptModule))


class ModuleCalls:
    """Forward hooks that report module calls to `see`, which may replace outputs.

    Calls that a check makes, as `is_aside` says, are neither counted nor reported.
    """

    def __init__(
        self, see: Callable[[str, nn.Module, Any, torch.Tensor], torch.Tensor | None],
        is_aside: Callable[[], bool] = is_summarizing,
    ) -> None:  # fmt: skip
        self._see, self._is_aside, self._counts, self._is_forward = see, is_aside, Counter[str](), True

    def hook(self, model: nn.Module) -> ExitStack:
        """Hook all modules until the returned context exits."""
        hooks = ExitStack()
        for name, module in hookable(model):
            hooks.enter_context(module.register_forward_hook(partial(self._called, name or "model")))
        return hooks

    def _called(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Any:
        value = first_tensor(output)
        if value is None or not self._is_forward or self._is_aside():
            return None
        count = self._counts[name]
        self._counts[name] += 1
        replaced = self._see(f"{name}#{count}" if count else name, module, inputs, value)
        return None if replaced is None else with_first_tensor(output, replaced)

    def feeds(self, *, again: bool = False) -> None:
        """Reset the call counts at the start of a micro-batch's forward pass; `again`: go on counting."""
        if not again:
            self._counts.clear()
        self._is_forward = True

    def forward_done(self) -> None:
        """Stop reporting calls after the forward pass, so that recomputation is ignored."""
        self._is_forward = False
