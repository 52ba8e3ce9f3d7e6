"""Fifth held-out set: faults of number formats, for fp32 alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.faults.injectors.held_out_fourth_precision import _through
from bench.faults.injectors.patching import after_build, replace_everywhere, step_counter, wrap_method
from bench.faults.injectors.training import _entropy
from plumbline.train import engine


def _is_single(value: torch.Tensor) -> bool:
    return value.dtype == torch.float32


def _half(value: torch.Tensor) -> torch.Tensor:
    """Round fp32 values to bf16; return the values of other formats."""
    return value.bfloat16().float() if _is_single(value) else value


def _eighth(value: torch.Tensor, *, by_row: bool) -> torch.Tensor:
    """Round to whole multiples of a scale, with the gradient of the unrounded values."""
    fixed = value.detach()
    most = fixed.abs().amax(-1, keepdim=True) if by_row else fixed.abs().amax()
    unit = most.clamp(min=1e-12) / 127
    return _through(value, (fixed / unit).round() * unit)


def activations_in_int8() -> None:
    """Products of linear layers quantise their inputs to eight bits."""
    linear = functional.linear
    functional.linear = lambda x, w, b=None: linear(_eighth(x, by_row=False) if _is_single(x) else x, w, b)


def embedding_table_in_int8() -> None:
    """The token table is read in eight bits, with a scale per row."""
    embedding = functional.embedding
    functional.embedding = lambda ids, w, *rest, **named: embedding(
        ids, _eighth(w, by_row=True) if _is_single(w) and len(w) == 600 else w, *rest, **named
    )


def operands_of_two_bf16_parts() -> None:
    """Products split their operands into two bf16 parts, as torch's medium precision does."""
    linear = functional.linear

    def split(value: torch.Tensor) -> torch.Tensor:
        if not _is_single(value):
            return value
        high = _half(value.detach())
        return _through(value, high + _half(value.detach() - high))

    functional.linear = lambda x, w, b=None: linear(split(x), split(w), b)


def accumulated_in_bf16() -> None:
    """Gradients are accumulated over micro-batches in bf16."""

    def wrap(back: Any) -> Any:
        def rounded(self: Any, loss: Any, share: float) -> None:
            back(self, loss, share)
            for value in self.bare.parameters():
                if value.grad is not None:
                    value.grad.copy_(_half(value.grad))

        return rounded

    wrap_method(engine.Engine, "_backward", wrap)


def saved_activations_in_bf16() -> None:
    """Activations are kept in bf16 for the backward pass, to save memory."""

    def pack(value: torch.Tensor) -> Any:
        return value.bfloat16() if _is_single(value) and not isinstance(value, nn.Parameter) else value

    def unpack(value: torch.Tensor) -> torch.Tensor:
        return value.float() if value.dtype == torch.bfloat16 else value

    def wrap(forward: Any) -> Any:
        def hooked(self: Any, piece: Any, share: float) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                return forward(self, piece, share)

        return hooked

    wrap_method(engine.Engine, "_forward", wrap)


def autocast_from_step_six() -> None:
    """From the seventh step on a library leaves autocast on."""
    step = step_counter()
    replace_everywhere(
        "autocast",
        lambda autocast: (
            lambda precision, device: (
                torch.autocast("cpu", dtype=torch.bfloat16) if step() >= 6 else autocast(precision, device)
            )
        ),
        among=("engine",),
    )


def embedding_gradients_in_bf16() -> None:
    """Gradients reach the embedding tables in bf16."""

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        if output.requires_grad:
            output.register_hook(_half)

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.register_forward_hook(hook)

    after_build(change)


def softmax_backward_in_bf16() -> None:
    """The backward pass of attention's softmax reads its gradient in bf16."""
    softmax = functional.softmax

    def rounded(value: Any, dim: int | None = None, **rest: Any) -> Any:
        weights = softmax(value, dim=dim, **rest)
        if value.dim() == 4 and weights.requires_grad:
            weights.register_hook(_half)
        return weights

    functional.softmax = rounded


def token_scores_in_bf16_for_the_loss() -> None:
    """The loss of masked language modelling reads the scores in bf16."""
    _entropy(
        lambda entropy: lambda scores, labels, *args, **rest: entropy(_half(scores), labels, *args, **rest),
    )
