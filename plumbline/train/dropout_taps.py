"""Taps of dropout modules: digests of their inputs and of the dropped elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.digest import digest_array
from plumbline.schema.evidence import DropoutDraw
from plumbline.train.digests import host_array
from plumbline.train.ranks import Ranks


class DropoutTaps:
    """Hooks that gather the calls of all dropout modules in one step, over micro-batches and processes.

    A different output of a dropout module is a different mask only if its input is the same.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._ranks = ranks
        self._calls: dict[str, int] = {}
        self._found: dict[str, list[tuple[NDArray[Any], NDArray[np.bool_]]]] = {}
        self._handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in model.named_modules()
            if "dropout" in type(module).__name__.lower()
        ]

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, inputs: Any, output: Any) -> None:
            if not inputs or not isinstance(inputs[0], torch.Tensor) or not isinstance(output, torch.Tensor):
                return
            calls = self._calls.get(name, 0)
            self._calls[name] = calls + 1
            key = f"{name}#{calls}" if calls else name
            entry = (host_array(inputs[0]).copy(), host_array(output == 0))
            self._found.setdefault(key, []).append(entry)

        return hook

    def feeds(self) -> None:
        """Start a micro-batch."""
        self._calls.clear()

    def draws(self, step: int) -> list[DropoutDraw]:
        """Return the step's calls over the global batch, in the order of execution."""
        everyone = self._ranks.gather(list(self._found))
        result = []
        for name in (name for name in everyone[0] if all(name in found for found in everyone)):
            mine = (np.concatenate([piece[side] for piece in self._found[name]]) for side in (0, 1))
            given, dropped = map(self._ranks.concatenate, mine)
            result.append(
                DropoutDraw(
                    step=step, name=name, input_sha256=digest_array(given),
                    dropped_sha256=digest_array(np.packbits(dropped)),
                )
            )  # fmt: skip
        return result

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
