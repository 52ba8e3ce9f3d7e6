"""Portable dropout: counter-based integer masks, equal on CPU and GPU.

The bit of an element is a hash of (seed, step, layer, row of the global batch, place inside the row). So the bits do
not depend on the number of processes, micro-batches or the device. All arithmetic wraps: 32 bits for an element, 64 for
a row. Nothing is copied from the host.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from plumbline.train.compat.transformers import use_attention_formula

ATTENTION = "plumbline-portable"


def _signed(word: int, bits: int = 32) -> int:
    """Convert an unsigned word to the signed integer with equal bits."""
    return word - (1 << bits) if word >> (bits - 1) else word


# The multipliers of Ettinger's `lowbias32`, whose bias is near the minimum for this form of hash.
_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)
# splitmix64: the increment, and its two multipliers.
_GAMMA, _MULTIPLIERS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_LONG = (1 << 64) - 1


def _mix(word: torch.Tensor) -> torch.Tensor:
    """Apply one round of the lowbias32 hash; mask off sign-extended bits."""
    word = word ^ ((word >> 16) & 0xFFFF)
    word = word * _FIRST
    word = word ^ ((word >> 15) & 0x1FFFF)
    word = word * _SECOND
    return word ^ ((word >> 16) & 0xFFFF)


def _key(*parts: int) -> int:
    """Hash some integers to a signed 64-bit key, by splitmix64."""
    key = _GAMMA
    for part in parts:
        key = ((key ^ part) + _GAMMA) & _LONG
        key = ((key ^ (key >> 30)) * _MULTIPLIERS[0]) & _LONG
        key = ((key ^ (key >> 27)) * _MULTIPLIERS[1]) & _LONG
        key ^= key >> 31
    return _signed(key, 64)


def _row_keys(rows: int, key: int, first_row: int, device: torch.device) -> torch.Tensor:
    """Return two 32-bit random keys per row."""
    first, second = (_signed(value, 64) for value in _MULTIPLIERS)
    keys = torch.arange(first_row, first_row + rows, dtype=torch.int64, device=device) ^ key
    keys = keys + _signed(_GAMMA, 64)
    keys = (keys ^ ((keys >> 30) & (_LONG >> 30))) * first
    keys = (keys ^ ((keys >> 27) & (_LONG >> 27))) * second
    keys = keys ^ ((keys >> 31) & (_LONG >> 31))
    return keys.view(torch.int32).reshape(rows, 2)


def plain_bits(rows: int, each: int, key: int, first_row: int, limit: int, device: torch.device) -> torch.Tensor:  # noqa: PLR0917
    """Return a dropout mask of [rows, each], by plain torch operations."""
    keys = _row_keys(rows, key, first_row, device)
    places = torch.arange(each, dtype=torch.int32, device=device).unsqueeze(0)
    word = _mix(_mix(places ^ keys[:, 0:1]) ^ keys[:, 1:2])
    return ((word >> 8) & 0xFFFFFF) >= limit


@functools.cache
def bits_form(device: torch.device) -> Callable[..., torch.Tensor]:
    """Return the fastest mask function whose bits are correct on this device."""
    if device.type != "cuda":
        return plain_bits
    trial = (3, 2050, _key(7, 3, 2), 40, 1 << 22, device)
    try:
        from plumbline.train.models.dropout_kernel import fused_bits

        is_equal = torch.equal(fused_bits(*trial), plain_bits(*trial))
    except Exception:  # noqa: BLE001 - without Triton, a C compiler or a place for its output each layer raises its own
        return plain_bits
    return fused_bits if is_equal else plain_bits


def keep_mask(
    shape: tuple[int, ...], rate: float, *, seed: int, step: int, layer: int, first_row: int, device: torch.device
) -> torch.Tensor:
    """Return the dropout keep mask for rows from `first_row` on."""
    each, limit = math.prod(shape[1:]), round(rate * (1 << 24))
    return bits_form(device)(shape[0], each, _key(seed, step, layer), first_row, limit, device).reshape(shape)


@dataclass
class DropoutClock:
    """Step, batch row and layer that select the next dropout masks."""

    seed: int
    step: int = 0
    first_row: int = 0
    drawn: set[tuple[int, int, int]] = field(default_factory=set)
    """(seed, step, first row) of the masks made since the start of the step."""
    _layers: int = field(default=0, repr=False)

    def starts(self, step: int) -> None:
        """Set the current step."""
        self.step = step
        self.drawn.clear()

    def feeds(self, first_row: int) -> None:
        """Set the micro-batch's first row within the global batch."""
        self.first_row = first_row

    def next_layer(self) -> int:
        """Return the number of the next dropout layer."""
        self._layers += 1
        return self._layers


class _Masked(torch.autograd.Function):
    """Autograd function that multiplies by mask and scale, saving only the mask."""

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
    """Replacement for `nn.Dropout` with portable masks; transformers' attention reads `p`."""

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
        clock.drawn.add((clock.seed, clock.step, clock.first_row))
        mask = keep_mask(
            tuple(values.shape), self.p, seed=clock.seed, step=clock.step, layer=self.layer,
            first_row=clock.first_row, device=values.device,
        )  # fmt: skip
        dropped: torch.Tensor = _Masked.apply(values, mask, 1 / (1 - self.p))  # type: ignore[no-untyped-call]
        return dropped


@functools.cache
def _uncompiled() -> type[PortableDropout]:
    """Exclude dropout from torch.compile, which would freeze its step number."""
    forward = torch.compiler.disable(PortableDropout.forward)
    return type("UncompiledPortableDropout", (PortableDropout,), {"forward": forward})


def _attention(  # noqa: PLR0917 - transformers calls it so
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Compute attention in plain operations, as fused kernels draw their own masks."""
    scores = torch.matmul(query, key.transpose(2, 3)) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    if dropout:
        drop: Any = getattr(module, "attn_dropout", None) or module.dropout
        weights = drop(weights)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def use_plain_attention(model: nn.Module) -> None:
    """Make `model` compute attention in plain operations, in its own precision."""
    use_attention_formula(model, ATTENTION, _attention)


def use_portable_dropout(model: nn.Module, clock: DropoutClock, *, compiled: bool = False) -> None:
    """Replace every dropout of `model`, including attention dropout."""
    kind = _uncompiled() if compiled else PortableDropout
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(module, name, kind(child.p, clock))
        rate = getattr(module, "attention_dropout", None)
        if isinstance(rate, (int, float)) and not isinstance(getattr(module, "dropout", None), nn.Module):
            # ModernBERT's attention has a dropout rate without a dropout module.
            module.dropout = kind(float(rate), clock)
    use_plain_attention(model)


@contextlib.contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set all dropout rates to zero, in modules and attention."""
    rates = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and ("drop" in name or (name == "p" and isinstance(module, nn.Dropout)))
    ]
    try:
        for module, name, _ in rates:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in rates:
            setattr(module, name, value)
