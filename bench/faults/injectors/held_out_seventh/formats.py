"""Seventh held-out set: faults of number formats at production settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import during, is_mixed, wrap_while
from plumbline.train.engine import Engine


def loss_in_bf16() -> None:
    """The loss of mixed precision is computed in bf16."""

    def short(_plain: Any, logits: torch.Tensor, labels: torch.Tensor, *_: Any, **__: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return nn.functional.nll_loss(torch.log_softmax(logits.bfloat16(), dim=-1), labels)

    wrap_while(is_mixed, nn.functional, "cross_entropy", short)


def _with_autocast(**keys: Any) -> None:
    """Let `speed` compute its forward pass under a second autocast."""

    def forward(plain: Any, self: Engine, *given: Any) -> Any:
        from plumbline.train import engine

        usual = engine.autocast
        engine.autocast = lambda precision, device: (  # type: ignore[assignment]
            torch.autocast("cpu", **keys) if precision in {"bf16", "fp16"} else usual(precision, device)
        )
        try:
            return plain(self, *given)
        finally:
            engine.autocast = usual

    wrap_while(during("speed"), Engine, "_forward", forward)


def bf16_where_fp16_is_asked() -> None:
    """`speed` computes in bf16 where the task says fp16."""
    _with_autocast(dtype=torch.bfloat16)


def autocast_without_effect() -> None:
    """`speed` computes in fp32 where the task says bf16."""
    _with_autocast(enabled=False)


def gradients_summed_in_bf16() -> None:
    """`speed` rounds its fp32 gradients to bf16, as a compressed exchange does."""

    def short(plain: Any, self: Engine) -> None:
        for value in self.bare.parameters():
            if value.grad is not None:
                value.grad.copy_(value.grad.bfloat16())
        plain(self)

    wrap_while(during("speed"), Engine, "_update", short)
