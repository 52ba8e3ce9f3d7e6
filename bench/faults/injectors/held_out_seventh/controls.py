"""Seventh held-out set: harmless differences at production settings."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import batches, speed
from plumbline.train.engine import Engine

Tensor = torch.Tensor


def sdpa_of_a_release_by_its_formula() -> None:
    """A release computes fused attention by its formula, in fp32 inside."""

    def formula(plain: Any, q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Any = None, **named: Any) -> Any:
        if named.get("dropout_p"):
            return plain(q, k, v, attn_mask=attn_mask, **named)
        scores = q.float() @ k.float().transpose(-2, -1) * (named.get("scale") or q.shape[-1] ** -0.5)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, torch.finfo(torch.float32).min)
        return (scores.softmax(-1) @ v.float()).to(q.dtype)

    wrap_while(lambda: True, nn.functional, "scaled_dot_product_attention", formula)


def fused_adamw_of_a_release_in_fp64() -> None:
    """A release computes the fused AdamW in fp64, and rounds once."""

    def wrap(plain: Any) -> Any:
        def double(parameters: Any, gradients: Any, first: Any, second: Any, *rest: Any, **named: Any) -> None:
            lists = [[value.detach().double() for value in values] for values in (parameters, gradients, first, second)]
            plain(*lists, *rest, **named)
            for values, found in zip((parameters, first, second), (lists[0], lists[2], lists[3]), strict=True):
                for value, exact in zip(values, found, strict=True):
                    value.data.copy_(exact)

        return double

    wrap_method(torch, "_fused_adamw_", wrap)


def batches_of_two_workers() -> None:
    """Two processes put the batches together."""

    def wrap(make: Any) -> Any:
        return lambda *given, **named: make(*given, **named | {"num_workers": 2})

    wrap_method(batches, "DataLoader", wrap)


def draws_of_a_private_generator() -> None:
    """A library draws from its own generator in each step."""
    own = torch.Generator().manual_seed(5)

    def wrap(step: Any) -> Any:
        return lambda self, *given: (torch.rand(16, generator=own), step(self, *given))[1]

    wrap_method(Engine, "step", wrap)


def outputs_watched_by_a_monitor() -> None:
    """A monitor computes the norm of each layer's output in `speed`."""
    norms: list[float] = []

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any, **named: Any) -> Any:
            engine = build(self, *given, **named)
            for module in engine.bare.modules():
                if isinstance(module, nn.LayerNorm):
                    module.register_forward_hook(lambda _m, _i, out: norms.append(float(out.detach().norm())))
            return engine

        return built

    wrap_method(speed.SpeedRun, "_engine", wrap)


def garbage_collected_each_step() -> None:
    """Garbage is collected before each step."""
    wrap_method(Engine, "step", lambda step: lambda self, *given: (gc.collect(), step(self, *given))[1])
