"""Portable dropout: masks from a counter-based integer generator, the same bits on a CPU and on any GPU.

The bit of an element is a hash of (seed, step, layer, row of the global batch, place inside the row), so that neither
the number of processes, nor micro-batches, nor the device has a say. Everything is wrapping 32-bit arithmetic.
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
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

__all__ = ["ATTENTION", "DropoutClock", "PortableDropout", "keep_mask", "use_plain_attention", "use_portable_dropout"]

ATTENTION = "plumbline-portable"
_WORD = 1 << 32


def _signed(word: int) -> int:
    """A 32-bit word as the int32 of the same bits."""
    return word - _WORD if word >= _WORD >> 1 else word


# The multipliers of Ettinger's `lowbias32`, whose bias is near the least that this shape of hash can have.
_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)


def _mix(word: torch.Tensor) -> torch.Tensor:
    """One round of lowbias32; shifts of int32 carry the sign, which the masks take off."""
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
    """The same integers in one kernel, where the device has a compiler."""
    compiled: Callable[..., torch.Tensor] = torch.compile(_bits, dynamic=True)
    return compiled


def _fused_bits(places: torch.Tensor, first: torch.Tensor, second: torch.Tensor, limit: int) -> torch.Tensor:
    """In one kernel if this machine can build it; the same bits in a dozen if it cannot."""
    global _fusing  # noqa: PLW0603 - a machine that has no compiler is asked once
    if _fusing:
        try:
            return _fused()(places, first, second, limit)
        except (RuntimeError, OSError, ImportError, subprocess.SubprocessError):
            # Triton builds its launcher at the first call, outside of what torch wraps: a compiler may fail there too.
            _fusing = False
    return _bits(places, first, second, limit)


_fusing = True


@functools.cache
def _can_fuse() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


def _row_keys(seed: int, step: int, layer: int, rows: range) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Two 32-bit keys for each row: splitmix64 over all that names it."""
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
    """Which elements of a tensor stay, its first dimension being rows of the global batch from `first_row` on."""
    keys = torch.from_numpy(_row_keys(seed, step, layer, range(first_row, first_row + shape[0])).copy()).to(device)
    each = int(np.prod(shape[1:], dtype=np.int64))
    places = torch.arange(each, dtype=torch.int32, device=device)
    hashed = (places.unsqueeze(0), keys[:, 0:1], keys[:, 1:2], round(rate * (1 << 24)))
    bits = _fused_bits(*hashed) if device.type == "cuda" and _can_fuse() else _bits(*hashed)
    return bits.reshape(shape)


@dataclass
class DropoutClock:
    """Which masks are due; the learn part sets it before each micro-batch."""

    seed: int
    step: int = 0
    first_row: int = 0
    _layers: int = field(default=0, repr=False)

    def next_layer(self) -> int:
        """A number for one more dropout of the model."""
        self._layers += 1
        return self._layers


class _Masked(torch.autograd.Function):
    """Multiply by mask and scale; only the mask is kept for the way back."""

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
    """Stands in the place of `nn.Dropout`; `p` is read by transformers' attention."""

    def __init__(self, p: float, clock: DropoutClock) -> None:
        super().__init__()
        self.p = p
        self.layer = clock.next_layer()
        self._clock = clock

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Drop elements while training; leave them alone otherwise."""
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
    """Attention spelt out, with the module's own dropout on the probabilities: fused kernels draw their own masks."""
    scores = torch.matmul(query, key.transpose(2, 3)) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    if dropout:
        weights = module.dropout(weights)  # type: ignore[operator]
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def use_plain_attention(model: nn.Module) -> None:
    """Let `model` compute attention by the formula, in the precision of its own values."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
    model.config._attn_implementation = ATTENTION  # type: ignore[union-attr]  # noqa: SLF001 - transformers has no other way


def use_portable_dropout(model: nn.Module, clock: DropoutClock) -> None:
    """Replace every dropout of `model`, that inside attention too."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(module, name, PortableDropout(child.p, clock))
        rate = getattr(module, "attention_dropout", None)
        if isinstance(rate, (int, float)) and not isinstance(getattr(module, "dropout", None), nn.Module):
            # ModernBERT's attention has a rate and no module for it.
            module.dropout = PortableDropout(float(rate), clock)
    use_plain_attention(model)
