"""Sixth held-out set: faults of gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.faults.injectors.held_out_fourth_operators import _inputs
from bench.faults.injectors.patching import after_build, step_counter, wrap_method
from bench.faults.injectors.training import _clip
from plumbline.train import engine

_SOFTMAX = functional.softmax
_WARM_UP = 4


def norm_gradients_not_reduced() -> None:
    """Two sequence shards do not add up the gradients of LayerNorm, so that each uses half."""

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.register_hook(lambda gradient: gradient * 0.5)
                module.bias.register_hook(lambda gradient: gradient * 0.5)

    after_build(change)


def key_gradient_not_scaled() -> None:
    """A fused attention kernel forgets the scale in the gradient of the keys."""

    def unscaled(value: Any) -> Any:
        if value.requires_grad:
            value.register_hook(lambda gradient: gradient * value.shape[-1] ** 0.5)
        return value

    _inputs(lambda q, k, v, mask: (q, unscaled(k), v, mask))


class _Softmax(torch.autograd.Function):
    """Softmax whose backward pass omits the sum over the row."""

    @staticmethod
    def forward(context: Any, value: Any) -> Any:
        """Return the exact softmax."""
        weights = _SOFTMAX(value, dim=-1)
        context.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return the gradient without its second term."""
        (weights,) = context.saved_tensors
        return gradients[0] * weights


def softmax_backward_without_its_sum() -> None:
    """A kernel's backward pass of attention's softmax omits the sum over the row."""
    functional.softmax = lambda value, dim=None, **rest: (
        _Softmax.apply(value) if value.dim() == 4 else _SOFTMAX(value, dim=dim, **rest)
    )


def last_row_sends_no_gradient() -> None:
    """A gather of uneven batches loses the gradient of the last row of each micro-batch."""

    def cut(_module: Any, _inputs: Any, output: Any) -> None:
        if output.requires_grad:
            kept = torch.ones(len(output), 1)
            kept[-1] = 0
            output.register_hook(lambda gradient: gradient * kept.to(gradient))

    after_build(lambda model: model.bert.pooler.register_forward_hook(cut))


def cleared_between_micro_batches() -> None:
    """A loop clears the gradients before each micro-batch instead of each step."""

    def wrap(back: Any) -> Any:
        def cleared(self: Any, loss: Any, share: float) -> None:
            self.optimizer.zero_grad(set_to_none=True)
            back(self, loss, share)

        return cleared

    wrap_method(engine.Engine, "_backward", wrap)


def clipped_group_by_group() -> None:
    """A wrapper clips matrices and vectors by a norm of their own each."""

    def wrap(clip: Any) -> Any:
        def clipped(parameters: Any, most: float, *args: Any, **rest: Any) -> Any:
            values = [value for value in parameters if value.grad is not None]
            clip([value for value in values if value.dim() > 1], most)
            return clip([value for value in values if value.dim() == 1], most)

        return clipped

    _clip(wrap)


def clipping_starts_after_a_warm_up() -> None:
    """A recipe clips gradients from the fifth step on only."""
    step = step_counter()
    _clip(
        lambda clip: (
            lambda parameters, most, *args, **rest: clip(parameters, 1e9 if step() < _WARM_UP else most, *args, **rest)
        )
    )
