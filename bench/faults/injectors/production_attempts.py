"""Attempts at a wrong pass in production kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.patching import wrap_method
from plumbline.train import engine


def _fused(**changes: Any) -> None:
    wrap_method(torch, "_fused_adamw_", lambda plain: lambda *tensors, **named: plain(*tensors, **named | changes))


def fused_without_momentum() -> None:
    """Fused AdamW takes the newest gradient alone."""
    _fused(beta1=0.0)


def fused_with_late_correction() -> None:
    """Fused AdamW corrects its moments as at step 1000."""

    def wrap(plain: Any) -> Any:
        def late(*tensors: Any, **named: Any) -> None:
            *others, steps = tensors
            plain(*others, [step + 1000 for step in steps], **named)

        return late

    wrap_method(torch, "_fused_adamw_", wrap)


def foreach_with_other_momentum() -> None:
    """AdamW over lists of tensors weighs the newest gradient twice."""
    wrap_method(
        torch, "_foreach_lerp_", lambda plain: lambda moments, gradients, weight: plain(moments, gradients, weight * 2)
    )


def _short(value: torch.Tensor) -> bool:
    """Return whether a call is one of mixed precision."""
    return torch.is_autocast_enabled("cpu") or value.dtype in (torch.bfloat16, torch.float16)


def _function(name: str, change: Callable[..., torch.Tensor]) -> None:
    """Let `change(plain, ...)` stand for a function of `torch.nn.functional` in mixed precision."""
    wrap_method(
        nn.functional, name,
        lambda plain: lambda value, *given, **named: (
            change(plain, value, *given, **named) if _short(value) else plain(value, *given, **named)
        ),
    )  # fmt: skip


def sdpa_unscaled() -> None:
    """Fused attention does not scale its scores."""
    _function("scaled_dot_product_attention", lambda plain, *given, **named: plain(*given, **named | {"scale": 1.0}))


def sdpa_loses_a_head() -> None:
    """Fused attention leaves the last head zero."""

    def lost(plain: Any, *given: Any, **named: Any) -> torch.Tensor:
        output = plain(*given, **named)
        return torch.cat([output[:, :-1], torch.zeros_like(output[:, -1:])], dim=1)

    _function("scaled_dot_product_attention", lost)


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 0.5


def sdpa_with_halved_backward() -> None:
    """Fused attention halves the gradients of queries and keys."""

    def halved(plain: Any, query: Any, key: Any, value: Any, *given: Any, **named: Any) -> torch.Tensor:
        found: torch.Tensor = plain(_Halved.apply(query), _Halved.apply(key), value, *given, **named)
        return found

    _function("scaled_dot_product_attention", halved)


def autocast_rounds_the_loss() -> None:
    """Autocast lists the loss among the functions of bf16: its mean is rounded."""
    wrap_method(
        nn.functional, "cross_entropy",
        lambda plain: lambda *given, **named: (
            plain(*given, **named).bfloat16().float()
            if torch.is_autocast_enabled("cpu") else plain(*given, **named)
        ),
    )  # fmt: skip


def linear_loses_a_split() -> None:
    """A product in bf16 does not add up its last eighth of terms."""

    def split(plain: Any, value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        kept = weight.shape[1] - weight.shape[1] // 8
        found: torch.Tensor = plain(value[..., :kept], weight[:, :kept], bias)
        return found

    _function("linear", split)


def bias_gradient_of_half_of_the_tokens() -> None:
    """A reduction in bf16 adds up half of a bias's gradient."""

    def half(plain: Any, value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        found: torch.Tensor = plain(value, weight, None if bias is None else _Halved.apply(bias))
        return found

    _function("linear", half)


def norm_without_its_tail() -> None:
    """LayerNorm leaves the last eight features zero in mixed precision."""

    def tail(plain: Any, *given: Any, **named: Any) -> torch.Tensor:
        output = plain(*given, **named)
        return torch.cat([output[..., :-8], torch.zeros_like(output[..., -8:])], dim=-1)

    _function("layer_norm", tail)


def scaler_unscales_by_half() -> None:
    """The gradients are twice too large after unscaling."""

    def wrap(plain: Any) -> Any:
        def unscale(self: Any, optimizer: Any) -> None:
            plain(self, optimizer)
            for group in optimizer.param_groups:
                for value in group["params"]:
                    if value.grad is not None:
                        value.grad.mul_(2)

        return unscale

    wrap_method(torch.amp.GradScaler, "unscale_", wrap)


def scaler_skips_every_update() -> None:
    """The scaler takes every gradient for infinite."""
    wrap_method(torch.amp.GradScaler, "step", lambda _: lambda *_given, **_named: None)


def packed_texts_see_each_other() -> None:
    """The tokens of a packed row attend to all of its texts."""
    wrap_method(engine, "mask_of_texts", lambda plain: lambda model, texts: plain(model, (texts > 0).long()))


def packed_positions_run_on() -> None:
    """The positions of a packed row do not begin again at each text."""

    def wrap(plain: Any) -> Any:
        def packed(self: Any, piece: Any, packing: Any) -> Any:
            inputs = plain(self, piece, packing)
            places = inputs["position_ids"]
            return {**inputs, "position_ids": torch.arange(places.shape[-1]).expand_as(places)}

        return packed

    wrap_method(engine.Engine, "_packed", wrap)


def compiled_gelu_as_relu() -> None:
    """The compiler takes GELU for a ReLU."""
    wrap_method(
        nn.functional, "gelu",
        lambda plain: lambda value, *given, **named: (
            torch.relu(value) if torch.compiler.is_compiling() else plain(value, *given, **named)
        ),
    )  # fmt: skip


def compiled_norm_with_other_eps() -> None:
    """The compiler's LayerNorm has an eps of 0.01."""
    wrap_method(
        nn.functional, "layer_norm",
        lambda plain: lambda value, shape, weight, bias, eps: plain(
            value, shape, weight, bias, 0.01 if torch.compiler.is_compiling() else eps
        ),
    )  # fmt: skip
