"""Check of an optimizer's update against AdamW's definition in fp64, from the run's own gradients."""

from __future__ import annotations

import math

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


class UpdateCheck:
    """AdamW in fp64 beside an engine's optimizer; `before` and `after` surround each update."""

    def __init__(self, engine: Engine, spec: OptimizerSpec) -> None:
        self._spec, self._count = spec, 0
        self._named = [(name, value) for name, value in engine.bare.named_parameters() if value.requires_grad]
        self._decayed = {name for name, _ in self._named if is_decayed(engine.bare, name)}
        self._moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._weights: list[torch.Tensor] = []
        self.excess, self.at, self.skipped = 0.0, "", False
        self.decay: float | None = None

    def before(self) -> None:
        """Copy the weights before the update."""
        self._weights = [value.detach().clone() for _, value in self._named]

    @torch.no_grad()
    def after(self, learning_rate: float, *, scaled: bool) -> None:
        """Compare the updated weights; loss scaling may skip an update whose gradients are not finite."""
        finite = all(value.grad is None or bool(value.grad.isfinite().all()) for _, value in self._named)
        self.skipped = scaled and not finite
        self._count += 0 if self.skipped else 1
        self.excess, self.at = 0.0, ""
        shrunk = norms = 0.0
        for (name, value), before in zip(self._named, self._weights, strict=True):
            old, new = before.double(), value.detach().double()
            step = torch.zeros_like(old) if self.skipped or value.grad is None else self._step(name, value.grad)
            decay = learning_rate * self._spec.weight_decay
            factor = 1.0 - decay if name in self._decayed and value.grad is not None and not self.skipped else 1.0
            expected = old * factor - learning_rate * step
            if factor != 1.0:
                shrunk += float(((old - learning_rate * step - new) * old).sum()) / decay
                norms += float(old.square().sum())
            self._worst(name, float((new - expected).norm()), float(old.norm()), float((expected - old).norm()))
        self.decay = shrunk / norms if norms else None
        self._weights = []

    def _step(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Advance the moments, and return the step in units of the learning rate."""
        slope, (beta1, beta2) = gradient.double(), self._spec.betas
        first, second = self._moments.get(name) or (torch.zeros_like(slope), torch.zeros_like(slope))
        first = first * beta1 + slope * (1 - beta1)
        second = second * beta2 + slope.square() * (1 - beta2)
        self._moments[name] = (first, second)
        scale = (second / (1 - beta2**self._count)).sqrt() + self._spec.eps
        return first / (1 - beta1**self._count) / scale

    def _of_corrections(self) -> float:
        """Return the roundings of both bias corrections: torch's CUDA kernel rounds beta**t to fp32, then 1 - beta**t.

        In units of the corrections these are 1 / (1 - beta**t) and, below the root, half as many.
        """
        first, second = (1 - beta ** max(self._count, 1) for beta in self._spec.betas)
        return 1 / first + 0.5 / second

    def _worst(self, name: str, off: float, weight: float, step: float) -> None:
        """Keep the parameter that is furthest off, in units of what fp32 rounds."""
        allowed = _UNIT * (_OF_WEIGHTS * weight + (_OF_STEP + self._of_corrections()) * step)
        excess = off / allowed if allowed else (0.0 if off == 0 else math.inf)
        if not excess <= self.excess:
            self.excess, self.at = excess, name
