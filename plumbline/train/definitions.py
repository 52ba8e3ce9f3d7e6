"""Loss, update and schedule by definition, in primitive operations, for checks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.spec import OptimizerSpec
from plumbline.train.optimizers import is_decayed

IGNORED = -100
_FP32 = 2.0**-21
"""Error of a log-softmax in fp32, in units of its largest operand."""


def _losses(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the fp64 cross entropy at each counted label."""
    scores = logits.reshape(-1, logits.shape[-1]).astype(np.float64)
    wanted = labels.reshape(-1)
    counted = wanted != IGNORED
    scores, wanted = scores[counted], wanted[counted]
    highest = scores.max(axis=-1, keepdims=True)
    logarithm = np.log(np.exp(scores - highest).sum(axis=-1)) + highest[:, 0]
    losses: NDArray[np.float64] = logarithm - scores[np.arange(len(wanted)), wanted]
    return losses


def reference_loss(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float | None:
    """Return the fp64 mean cross entropy over counted labels; `None` without any."""
    losses = _losses(logits, labels)
    return float(losses.mean()) if losses.size else None


def autocast_loss(
    logits: NDArray[np.floating], labels: NDArray[np.int64], dtype: torch.dtype, loss: float
) -> float | None:
    """Return the reference loss nearest to `loss`, see `nearest_loss`."""
    return nearest_loss(_losses(logits, labels), float(np.abs(logits).max(initial=0.0)), dtype, loss)


def nearest_loss(losses: NDArray[np.float64], largest: float, dtype: torch.dtype, loss: float) -> float | None:
    """Return the mean nearest to `loss`: of fp64 losses, or of log-probabilities rounded to the logits' `dtype`.

    `largest` is the largest logit. Under CUDA's autocast torch computes the latter: its cross entropy names a format
    for the log-softmax, which autocast then leaves alone. Log-probabilities within fp32's rounding of a tie may go
    either way.
    """
    exact = float(losses.mean()) if losses.size else None
    if exact is None or dtype in (torch.float32, torch.float64) or not np.isfinite(losses).all():
        return exact
    slack = _FP32 * (1 + largest)
    least, most = (torch.from_numpy(losses + off).to(dtype).double().mean().item() for off in (-slack, slack))
    rounded = min(max(loss, least), most)
    return min(exact, rounded, key=lambda value: abs(value - loss))


def loss_by_definition(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy from exp and log, in at least fp32."""
    scores = logits.reshape(-1, logits.shape[-1])
    scores = scores if scores.dtype == torch.float64 else scores.float()
    wanted = labels.reshape(-1)
    counted = wanted != IGNORED
    scores, wanted = scores[counted], wanted[counted]
    shifted = scores - scores.detach().amax(dim=-1, keepdim=True)
    logarithm = shifted.exp().sum(dim=-1).log()
    return (logarithm - shifted.gather(1, wanted.unsqueeze(1)).squeeze(1)).mean()


class AdamW:
    """AdamW by Loshchilov and Hutter's definition, with the spec's settings."""

    def __init__(self, model: nn.Module, spec: OptimizerSpec) -> None:
        self._spec = spec
        self._step = 0
        self._named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self._is_decayed = {name: is_decayed(model, name) for name, _ in self._named}
        self._first = {name: torch.zeros_like(value) for name, value in self._named}
        self._second = {name: torch.zeros_like(value) for name, value in self._named}

    def resume(self, optimizer: torch.optim.Optimizer) -> None:
        """Continue from the state of torch's AdamW; a new optimizer has none."""
        for name, value in self._named:
            state = optimizer.state.get(value) or {}
            if {"exp_avg", "exp_avg_sq", "step"} <= state.keys():
                self._first[name].copy_(state["exp_avg"])
                self._second[name].copy_(state["exp_avg_sq"])
                self._step = int(state["step"])

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
