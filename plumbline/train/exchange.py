"""Check of the gradients that processes exchange in a first step: each process must get their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from plumbline.train.digests import finite
from plumbline.train.engine import Engine

Sums = list[list[float]]
"""Alternating sum and sum of squares of each gradient."""


def _sums(gradient: torch.Tensor) -> torch.Tensor:
    """Return both sums; the plain sum of a gradient behind a normalisation is nearly zero, whatever is lost."""
    values = gradient.float().reshape(-1)
    return torch.stack((values[::2].sum() - values[1::2].sum(), values.square().sum()))


class ExchangeCheck:
    """Sums of each gradient of a process before and after the exchange; nothing waits for a device."""

    def __init__(self, engine: Engine) -> None:
        self._parameters = [value for value in engine.bare.parameters() if value.requires_grad]
        self._scale = engine.scaler.get_scale() if engine.scaler else 1.0
        self._own: dict[int, torch.Tensor] = {}
        self._exchanged: dict[int, torch.Tensor] = {}
        # These hooks run before those of DDP, which exchanges the gradients.
        self._handles = [
            value.register_post_accumulate_grad_hook(partial(self._accumulated, place))
            for place, value in enumerate(self._parameters)
        ]

    def _accumulated(self, place: int, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._own[place] = _sums(parameter.grad / self._scale)

    def exchanged(self) -> None:
        """Measure the exchanged gradients, after the scale of the loss is removed; watch no later step."""
        for handle in self._handles:
            handle.remove()
        self._exchanged = {
            place: _sums(value.grad) for place, value in enumerate(self._parameters) if value.grad is not None
        }

    def read(self) -> tuple[Sums, Sums]:
        """Return the sums of the own gradients and of the exchanged ones."""
        places = sorted(self._own.keys() & self._exchanged.keys())
        own, exchanged = ([known[place].tolist() for place in places] for known in (self._own, self._exchanged))
        return own, exchanged


def exchange_error(own: Sequence[Sums], exchanged: Sums) -> float | None:
    """Return how far the sums of the exchanged gradients are from the mean of all processes' own.

    The unit is the root mean square of a process's gradients; `None` without a finite number.
    """
    if not exchanged or any(len(sums) != len(exchanged) for sums in own):
        return None
    off = size = 0.0
    for place, (total, _) in enumerate(exchanged):
        off += (total - sum(sums[place][0] for sums in own) / len(own)) ** 2
        size += sum(sums[place][1] for sums in own) / len(own)
    return finite(math.sqrt(off / size)) if size else None
