"""Portable dropout: masks from a counter-based integer generator, equal on CPU and GPU.

The bit of an element is a hash of (seed, step, layer, row of the global batch, place inside the row). So the bits do
not depend on the number of processes, micro-batches or the device. All arithmetic is wrapping 32-bit.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from plumbline.train.compat.transformers import use_attention_formula

__all__ = ["ATTENTION", "DropoutClock", "PortableDropout", "keep_mask", "use_plain_attention", "use_portable_dropout"]

ATTENTION = "plumbline-portable"
_WORD = 1 << 32


def _signed(word: int) -> int:
    """Return a 32-bit word as the int32 of the same bits."""
    return word - _WORD if word >= _WORD >> 1 else word


# The multipliers of Ettinger's `lowbias32`, whose bias is near the minimum for this form of hash.
_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)


def _mix(word: torch.Tensor) -> torch.Tensor:
    """Apply one round of lowbias32; the masks remove the sign that int32 shifts extend."""
    word = word ^ ((word >> 16) & 0xFFFF)
    word = word * _FIRST
    word = word ^ ((word >> 15) & 0x1FFFF)
    word = word * _SECOND
    return word ^ ((word >> 16) & 0xFFFF)


def _bits(places: torch.Tensor, first: torch.Tensor, second: torch.Tensor, limit: int) -> torch.Tensor:
    word = _mix(_mix(places ^ first) ^ second)
    return ((word >> 8) & 0xFFFFFF) >= limit


@functools.cache
def _fused() -> Callable[..., torch.Tensor]:
    """Compile the hash into a single kernel."""
    compiled: Callable[..., torch.Tensor] = torch.compile(_bits, dynamic=True)
    return compiled


def _fused_bits(places: torch.Tensor, first: torch.Tensor, second: torch.Tensor, limit: int) -> torch.Tensor:
    """Compute the mask, in a fused kernel if possible."""
    global _fusing  # noqa: PLW0603 - the compiler is tried once only
    if _fusing:
        try:
            return _fused()(places, first, second, limit)
        except (RuntimeError, OSError, ImportError, subprocess.SubprocessError):
            # Triton builds its launcher at the first call, outside torch's error handling: the compiler may fail there
            # too.
            _fusing = False
    return _bits(places, first, second, limit)


_fusing = True


@functools.cache
def _can_fuse() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


def _row_keys(seed: int, step: int, layer: int, rows: range) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return two 32-bit keys per row, by splitmix64."""
    key = np.full(len(rows), 0x9E3779B97F4A7C15, np.uint64)
    for part in (np.uint64(seed), np.uint64(step), np.uint64(layer), np.arange(rows.start, rows.stop, dtype=np.uint64)):
        key = (key ^ part) + np.uint64(0x9E3779B97F4A7C15)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        key = key ^ (key >> np.uint64(31))
    return key.astype("<u8").view("<i4").reshape(-1, 2)


def keep_mask(
    shape: tuple[int, ...], rate: float, *, seed: int, step: int, layer: int, first_row: int, device: torch.device
) -> torch.Tensor:
    """Return the mask of kept elements; rows start at `first_row` of the global batch."""
    keys = torch.from_numpy(_row_keys(seed, step, layer, range(first_row, first_row + shape[0])).copy()).to(device)
    each = int(np.prod(shape[1:], dtype=np.int64))
    places = torch.arange(each, dtype=torch.int32, device=device)
    hashed = (places.unsqueeze(0), keys[:, 0:1], keys[:, 1:2], round(rate * (1 << 24)))
    bits = _fused_bits(*hashed) if device.type == "cuda" and _can_fuse() else _bits(*hashed)
    return bits.reshape(shape)


@dataclass
class DropoutClock:
    """Position of the next masks, set before each micro-batch."""

    seed: int
    step: int = 0
    first_row: int = 0
    _layers: int = field(default=0, repr=False)

    def next_layer(self) -> int:
        """Return the next dropout layer's number."""
        self._layers += 1
        return self._layers


class _Masked(torch.autograd.Function):
    """Autograd function: multiply by mask and scale, and save only the mask."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        context.save_for_backward(mask)
        context.scale = scale
        return values * mask * scale

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (mask,) = context.saved_tensors
        return gradients[0] * mask * context.scale, None, None


class PortableDropout(nn.Module):
    """Replacement of `nn.Dropout`; transformers' attention reads `p`."""

    def __init__(self, p: float, clock: DropoutClock) -> None:
        super().__init__()
        self.p = p
        self.layer = clock.next_layer()
        self._clock = clock

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Drop elements while training; otherwise return the values unchanged."""
        if not self.training or self.p == 0:
            return values
        clock = self._clock
        mask = keep_mask(
            tuple(values.shape), self.p, seed=clock.seed, step=clock.step, layer=self.layer,
            first_row=clock.first_row, device=values.device,
        )  # fmt: skip
        dropped: torch.Tensor = _Masked.apply(values, mask, 1 / (1 - self.p))  # type: ignore[no-untyped-call]
        return dropped


def _attention(  # noqa: PLR0917 - transformers calls it so
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Compute attention by its formula, as fused kernels draw their own masks."""
    scores = torch.matmul(query, key.transpose(2, 3)) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    if dropout:
        weights = module.dropout(weights)  # type: ignore[operator]
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def use_plain_attention(model: nn.Module) -> None:
    """Make `model` compute attention by its formula, in its own precision."""
    use_attention_formula(model, ATTENTION, _attention)


def use_portable_dropout(model: nn.Module, clock: DropoutClock) -> None:
    """Replace every dropout of `model`, also inside attention."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(module, name, PortableDropout(child.p, clock))
        rate = getattr(module, "attention_dropout", None)
        if isinstance(rate, (int, float)) and not isinstance(getattr(module, "dropout", None), nn.Module):
            # ModernBERT's attention has a dropout rate without a dropout module.
            module.dropout = PortableDropout(float(rate), clock)
    use_plain_attention(model)
