"""Check of an optimizer's update against its definition in fp64, from the run's own gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from plumbline.schema.spec import OptimizerSpec
from plumbline.train.engine import Engine
from plumbline.train.optimizers import is_decayed

_UNIT = 2.0**-24
"""Largest relative error of one operation in fp32."""
_OF_WEIGHTS = 3.0
"""Roundings of a weight in one update: the decay's factor, its product, and the sum with the step."""
_OF_STEP = 64.0
"""Roundings of the step itself, in which moments, root and quotient add up."""

_EPS = 2.0**-23
"""Adafactor's least moment: the relative spacing of fp32."""


class UpdateCheck:
    """An optimizer's definition in fp64 beside an engine's own; `before` and `after` surround each update."""

    def __init__(self, engine: Engine, spec: OptimizerSpec) -> None:
        self._spec, self._count = spec, 0
        self._kind = type(engine.optimizer).__name__
        self._named = [(name, value) for name, value in engine.bare.named_parameters() if value.requires_grad]
        groups = enumerate(engine.optimizer.param_groups)
        places = {value: place for place, group in groups for value in group["params"]}
        self._groups = {name: places[value] for name, value in self._named}
        self._decayed = {name for name, _ in self._named if is_decayed(engine.bare, name)}
        self._moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._weights: list[torch.Tensor] = []
        self.excess, self.at, self.skipped = 0.0, "", False
        self.decay: float | None = None

    def before(self) -> None:
        """Copy the weights before the update."""
        self._weights = [value.detach().clone() for _, value in self._named]

    @torch.no_grad()
    def after(self, learning_rates: Sequence[float], *, scaled: bool) -> None:
        """Compare the weights updated at each group's rate; loss scaling may skip gradients that are not finite."""
        finite = all(value.grad is None or bool(value.grad.isfinite().all()) for _, value in self._named)
        self.skipped = scaled and not finite
        self._count += 0 if self.skipped else 1
        self.excess, self.at = 0.0, ""
        shrunk = norms = 0.0
        for (name, value), before in zip(self._named, self._weights, strict=True):
            old, new, learning_rate = before.double(), value.detach().double(), learning_rates[self._groups[name]]
            slope = None if self.skipped else value.grad
            step = torch.zeros_like(old) if slope is None else self._step(name, slope, old, learning_rate)
            decay = learning_rate * self._spec.weight_decay
            factor = 1.0 - decay if name in self._decayed and slope is not None and self._kind != "SGD" else 1.0
            expected = old * factor - learning_rate * step
            if factor != 1.0:
                shrunk += float(((old - learning_rate * step - new) * old).sum()) / decay
                norms += float(old.square().sum())
            self._worst(name, float((new - expected).norm()), float(old.norm()), float((expected - old).norm()))
        self.decay = shrunk / norms if norms else None
        self._weights = []

    def _step(self, name: str, gradient: torch.Tensor, weight: torch.Tensor, rate: float) -> torch.Tensor:
        """Advance the moments, and return the step in units of the learning rate."""
        slope, (beta1, beta2) = gradient.double(), self._spec.betas
        first, second = self._moments.get(name) or (torch.zeros_like(slope), torch.zeros_like(slope))
        if self._kind == "SGD":  # its decay is a part of the gradient
            slope = slope + weight * (self._spec.weight_decay if name in self._decayed else 0.0)
            self._moments[name] = (first * beta1 + slope, second)
            return first * beta1 + slope
        if self._kind == "Adafactor":
            second, step = _adafactor(slope, second, weight, self._count)
            self._moments[name] = (first, second)
            return step * (min(rate, 1 / math.sqrt(self._count)) / rate)
        first = first * beta1 + slope * (1 - beta1)
        second = second * beta2 + slope.square() * (1 - beta2)
        self._moments[name] = (first, second)
        scale = (second / (1 - beta2**self._count)).sqrt() + self._spec.eps
        return first / (1 - beta1**self._count) / scale

    def _of_corrections(self) -> float:
        """Return the roundings of both bias corrections: torch's CUDA kernel rounds beta**t to fp32, then 1 - beta**t.

        In units of the corrections these are 1 / (1 - beta**t) and, below the root, half as many.
        """
        if self._kind != "AdamW":
            return 0.0
        first, second = (1 - beta ** max(self._count, 1) for beta in self._spec.betas)
        return 1 / first + 0.5 / second

    def _worst(self, name: str, off: float, weight: float, step: float) -> None:
        """Keep the parameter that is furthest off, in units of what fp32 rounds."""
        allowed = _UNIT * (_OF_WEIGHTS * weight + (_OF_STEP + self._of_corrections()) * step)
        excess = off / allowed if allowed else (0.0 if off == 0 else math.inf)
        if not excess <= self.excess:
            self.excess, self.at = excess, name


def _adafactor(
    slope: torch.Tensor, second: torch.Tensor, weight: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the second moment and the step, scaled by the weight's size, of torch's Adafactor at its defaults.

    The moment of a matrix is the product of its means over rows and columns, divided by the mean of all. Means are
    linear, so that those of the whole moment are the means' own moments.
    """
    second = second + (slope.square() - second) * count**-0.8
    moment = second
    if slope.dim() > 1:
        rows, columns = second.mean(-1, keepdim=True), second.mean(-2, keepdim=True)
        moment = rows * columns / rows.mean(-2, keepdim=True).clamp(min=_EPS)
    step = slope / moment.clamp(min=_EPS**2).sqrt()
    step = step / max(1.0, float(step.square().mean().sqrt()))
    return second, step * max(1e-3, float(weight.square().mean().sqrt()))
