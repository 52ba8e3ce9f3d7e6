"""Recompute optimizer updates in fp64 by definition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from plumbline.train.engine import Engine
from plumbline.train.optimizers import is_decayed

_UNIT = 2.0**-24
"""Largest relative error of one operation in fp32."""
_OF_WEIGHTS = 3.0
"""Roundings of a weight in one update: the decay's factor, its product, and the sum with the step."""
_OF_STEP = 64.0
"""Roundings of the step itself, in which moments, root and quotient add up."""
_OF_MOMENTS = 8.0
"""Roundings of a moment: its share, its product, and their sum, each in half spacings."""
_SMALLEST = 2.0**-126
"""What a moment loses below fp32's smallest normal number, as of a gradient that is rounding alone."""
_EPS = 2.0**-23
"""Adafactor's least moment: the relative spacing of fp32."""

State = dict[str, torch.Tensor]


class UpdateCheck:
    """Comparison of one optimizer update with its fp64 definition."""

    def __init__(self, engine: Engine) -> None:
        self._spec, self._optimizer = engine.spec.optimizer, engine.optimizer
        self.kind = type(engine.optimizer).__name__
        self._named = [(name, value) for name, value in engine.bare.named_parameters() if value.requires_grad]
        self._groups = {
            value: place for place, group in enumerate(engine.optimizer.param_groups) for value in group["params"]
        }
        self._decayed = {name for name, _ in self._named if is_decayed(engine.bare, name)}
        self._weights: list[torch.Tensor] = []
        self._states: list[State] = []

    def before(self) -> None:
        """Copy weights and optimizer state before the update."""
        self._weights = [value.detach().clone() for _, value in self._named]
        self._states = [
            {
                key: entry.detach().clone()
                for key, entry in self._optimizer.state.get(value, {}).items()
                if isinstance(entry, torch.Tensor)
            }
            for _, value in self._named
        ]

    @torch.no_grad()
    def errors(self, rates: Sequence[float]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each parameter's error against its definition, in fp32 roundings."""
        for (name, value), old, state in zip(self._named, self._weights, self._states, strict=True):
            if value.grad is None:
                continue
            weight, rate = old.double(), rates[self._groups[value]]
            count = float(state["step"]) + 1 if "step" in state else 1.0
            share = self._spec.weight_decay if name in self._decayed else 0.0
            slope = value.grad.double()
            if self.kind == "SGD":  # its decay is a part of the gradient
                slope, share = slope + weight * share, 0.0
            step, decay = self._step(slope, weight, rate, state, count), rate * share
            expected = weight * (1.0 - decay) - rate * step
            off, moved, size = (
                torch.linalg.vector_norm(each)
                for each in (value.detach().double() - expected, expected - weight, weight)
            )
            roundings = _OF_STEP + self._of_corrections(count)
            least = value.numel() ** 0.5 * _SMALLEST
            limit = _UNIT * (_OF_WEIGHTS * size + roundings * moved) + least * rate / self._spec.eps
            yield name, torch.where(off == 0, 0.0, off / limit)
            for key, terms in self._moments(slope, state).items():
                kept = self._optimizer.state[value][key].double()
                off, *sizes = (torch.linalg.vector_norm(each) for each in (kept - sum(terms), *terms))
                yield name, off / (_UNIT * _OF_MOMENTS * sum(sizes) + least)

    def _moments(self, slope: torch.Tensor, state: State) -> dict[str, tuple[torch.Tensor, ...]]:
        """Return the terms that sum to each optimizer moment after the update."""
        beta1, beta2 = self._spec.betas
        if self.kind == "SGD":
            kept = (state["momentum_buffer"].double() * beta1,) if "momentum_buffer" in state else ()
            return {"momentum_buffer": (*kept, slope)} if beta1 else {}
        if self.kind != "AdamW":
            return {}
        found = {"exp_avg": (slope * (1 - beta1),), "exp_avg_sq": (slope.square() * (1 - beta2),)}
        shares = {"exp_avg": beta1, "exp_avg_sq": beta2}
        return {key: (*new, *([state[key].double() * shares[key]] if state else [])) for key, new in found.items()}

    def _step(
        self, slope: torch.Tensor, weight: torch.Tensor, rate: float, state: State, count: float
    ) -> torch.Tensor:  # fmt: skip
        """Return the expected update, divided by the learning rate."""
        beta1, beta2 = self._spec.betas
        if self.kind == "SGD":  # its first momentum is the gradient
            return state["momentum_buffer"].double() * beta1 + slope if "momentum_buffer" in state else slope
        if self.kind == "Adafactor":
            step = _adafactor(slope, state, weight, count)
            share: float = min(rate, 1 / math.sqrt(count)) / rate if rate else 1.0
            return step * share
        first = state["exp_avg"].double() * beta1 if state else torch.zeros_like(slope)
        second = state["exp_avg_sq"].double() * beta2 if state else torch.zeros_like(slope)
        first, second = first + slope * (1 - beta1), second + slope.square() * (1 - beta2)
        corrections = float(1 - beta1**count), float(1 - beta2**count)
        return first / corrections[0] / ((second / corrections[1]).sqrt() + self._spec.eps)

    def _of_corrections(self, count: float) -> float:
        """Return the rounding error of AdamW's fp32 bias corrections.

        In units of the corrections these are 1 / (1 - beta**t) and, below the root, half as many.
        """
        if self.kind != "AdamW":
            return 0.0
        first, second = (1 - beta**count for beta in self._spec.betas)
        return float(1 / first + 0.5 / second)


def _adafactor(slope: torch.Tensor, state: State, weight: torch.Tensor, count: float) -> torch.Tensor:
    """Return the update of torch's Adafactor at its default settings.

    The moment of a matrix is the product of its means over rows and columns, divided by the mean of all.
    """
    share = count**-0.8
    if slope.dim() > 1:
        rows, columns = (
            (before := state[key].double() if key in state else torch.zeros_like(mean)) + (mean - before) * share
            for key, mean in (
                ("row_var", slope.square().mean(-1, keepdim=True)), ("col_var", slope.square().mean(-2, keepdim=True))
            )
        )  # fmt: skip
        moment = rows * columns / rows.mean(-2, keepdim=True).clamp(min=_EPS)
    else:
        before = state["variance"].double() if "variance" in state else torch.zeros_like(slope)
        moment = before + (slope.square() - before) * share
    step = slope / moment.clamp(min=_EPS**2).sqrt()
    step = step / max(1.0, float(step.square().mean().sqrt()))
    scaled: torch.Tensor = step * max(1e-3, float(weight.square().mean().sqrt()))
    return scaled
