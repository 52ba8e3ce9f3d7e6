"""Sixth held-out set: faults of number formats, for fp32 alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bench.faults.injectors.held_out_fifth.precision import _is_single
from bench.faults.injectors.held_out_fourth_operators import _inputs
from bench.faults.injectors.held_out_fourth_precision import _through
from bench.faults.injectors.model import _bits
from bench.faults.injectors.patching import after_build

_FEED_FORWARD = 64


def keys_and_values_in_fp8() -> None:
    """A serving library stores keys and values in FP8."""

    def eighth(value: torch.Tensor) -> torch.Tensor:
        return _through(value, value.detach().to(torch.float8_e4m3fn)) if _is_single(value) else value

    _inputs(lambda q, k, v, mask: (q, eighth(k), eighth(v), mask))


def weights_read_in_four_bits() -> None:
    """A loader's default quantises the weights of linear layers to four bits at each use."""
    linear = functional.linear

    def quantised(x: Any, w: Any, b: Any = None) -> Any:
        if not _is_single(w):
            return linear(x, w, b)
        fixed = w.detach()
        unit = fixed.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 7
        return linear(x, _through(w, (fixed / unit).round() * unit), b)

    functional.linear = quantised


def tanh_in_fp16() -> None:
    """A math library computes the pooler's tanh in fp16."""

    def change(model: Any) -> None:
        activation = model.bert.pooler.activation
        forward = activation.forward
        activation.forward = lambda value: forward(value.half()).float() if _is_single(value) else forward(value)

    after_build(change)


def last_layer_under_autocast() -> None:
    """A wrapper for long inputs runs the last layer alone under autocast to bf16."""

    def change(model: Any) -> None:
        layer = model.bert.encoder.layer[1]
        forward = layer.forward

        def lowered(states: Any, *args: Any, **rest: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=_is_single(states)):
                return forward(states, *args, **rest).to(states.dtype)

        layer.forward = lowered

    after_build(change)


def one_shape_in_tf32() -> None:
    """A library of kernels has only a TF32 kernel for products over 64 columns."""
    linear = functional.linear

    def product(x: Any, w: Any, b: Any = None) -> Any:
        if x.shape[-1] != _FEED_FORWARD or not _is_single(x):
            return linear(x, w, b)
        return linear(_through(x, _bits(x.detach(), 10)), _through(w, _bits(w.detach(), 10)), b)

    functional.linear = product
