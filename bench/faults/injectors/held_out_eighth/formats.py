"""Eighth held-out set: parts of a training in fewer or more bits than the task says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import during, is_mixed, short_of, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train.engine import Engine

Tensor = torch.Tensor


def _out_of_autocast(kind: str) -> None:
    """Compute a class of modules in fp32 while autocast is on."""

    def wide(plain: Callable[..., Any], self: nn.Module, hidden: Tensor, *given: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return plain(self, hidden.float(), *given)

    wrap_while(is_mixed, getattr(modeling_bert, kind), "forward", wide)


def feed_forward_out_of_autocast() -> None:
    """The first product of the feed-forward layers is kept out of autocast."""
    _out_of_autocast("BertIntermediate")


def pooler_out_of_autocast() -> None:
    """The pooler is on a list of modules that stay in fp32."""
    _out_of_autocast("BertPooler")


def norm_outputs_in_bf16() -> None:
    """LayerNorm in mixed precision stores its outputs in bf16, where the task says fp16 or fp32."""
    wrap_while(
        is_mixed, nn.functional, "layer_norm",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.bfloat16),
    )  # fmt: skip


def tables_in_fp8() -> None:
    """Tables in mixed precision are read in eight bits."""
    wrap_while(
        is_mixed, nn.functional, "embedding",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.float8_e4m3fn),
    )  # fmt: skip


def logits_in_fp8() -> None:
    """The classifier's outputs in mixed precision have two bits of mantissa."""

    def short(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        found = plain(x, w, b)
        return short_of(found, torch.float8_e5m2) if w.shape[0] == 2 else found

    wrap_while(is_mixed, nn.functional, "linear", short)


def gradients_kept_in_fp8() -> None:
    """`speed` keeps its gradients in eight bits, with a scale for each tensor, after it divides by the loss scale."""
    acts = during("speed")

    def wrap(unscale: Any) -> Any:
        def unscaled(self: Any, optimizer: Any) -> None:
            unscale(self, optimizer)
            for group in optimizer.param_groups if acts() else ():
                for value in group["params"]:
                    if value.grad is not None and bool(value.grad.any()):
                        scale = torch.exp2(value.grad.abs().max().log2().floor())
                        value.grad.copy_((value.grad / scale).to(torch.float8_e5m2).float() * scale)

        return unscaled

    wrap_method(torch.amp.GradScaler, "unscale_", wrap)


def products_of_fp32_in_half() -> None:
    """`speed` computes under an autocast to fp16 where the task says fp32."""

    def forward(plain: Any, self: Engine, *given: Any) -> Any:
        if self.precision != "fp32":
            return plain(self, *given)
        with torch.autocast("cpu", dtype=torch.float16):
            return plain(self, *given)

    wrap_while(during("speed"), Engine, "_forward", forward)
