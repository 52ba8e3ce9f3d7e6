"""AdamW update in primitive operations, to check torch's implementation."""

from __future__ import annotations

import torch
from torch import nn

from plumbline.schema.spec import OptimizerSpec
from plumbline.train.optimizers import is_decayed


class AdamW:
    """AdamW as defined by Loshchilov and Hutter, with the spec's settings."""

    def __init__(self, model: nn.Module, spec: OptimizerSpec) -> None:
        self._spec = spec
        self._step = 0
        self._named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self._is_decayed = {name: is_decayed(model, name) for name, _ in self._named}
        self._first = {name: torch.zeros_like(value) for name, value in self._named}
        self._second = {name: torch.zeros_like(value) for name, value in self._named}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the parameters from their current gradients."""
        self._step += 1
        beta1, beta2 = self._spec.betas
        correction1, correction2 = 1 - beta1**self._step, 1 - beta2**self._step
        for name, value in self._named:
            gradient = value.grad
            if gradient is None:
                continue
            if self._is_decayed[name]:
                value.mul_(1 - learning_rate * self._spec.weight_decay)
            first = self._first[name].mul_(beta1).add_(gradient * (1 - beta1))
            second = self._second[name].mul_(beta2).add_(gradient * gradient * (1 - beta2))
            scale = (second / correction2).sqrt() + self._spec.eps
            value.sub_(learning_rate / correction1 * (first / scale))
