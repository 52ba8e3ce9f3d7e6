"""Recompute optimizer updates in fp64 by the definition of their own parameter groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

_OF_WEIGHTS = 3.0
"""Roundings of a weight in one update: the decay's factor, its product, and the sum with the step."""
_OF_STEP = 64.0
"""Roundings of the step itself, in which moments, root and quotient add up."""
_OF_MOMENTS = 8.0
"""Roundings of a moment: its share, its product, and their sum, each in half spacings."""
_EPS = 2.0**-23
"""Adafactor's least moment: the relative spacing of fp32."""
_DEFINED = ("Adam", "AdamW", "SGD", "Adafactor")
_PLAIN = {"amsgrad": False, "maximize": False, "nesterov": False, "dampening": 0.0}
"""Settings of the definitions below, which are those of torch's own classes."""

State = dict[str, torch.Tensor]
Group = Mapping[str, Any]
"""Settings of a parameter group, as torch names them."""


def adam_moments(
    slope: torch.Tensor, state: State, group: Group
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:  # fmt: skip
    """Return the old and the new share of Adam's first and second moment."""
    beta1, beta2 = group["betas"]
    first, second = (
        state[key].to(slope.dtype) if state else torch.zeros_like(slope) for key in ("exp_avg", "exp_avg_sq")
    )
    return (first * beta1, slope * (1 - beta1)), (second * beta2, slope.square() * (1 - beta2))


def adam_step(first: torch.Tensor, second: torch.Tensor, group: Group, count: float) -> torch.Tensor:
    """Return Adam's update from both moments, divided by the learning rate (Kingma and Ba)."""
    beta1, beta2 = group["betas"]
    step: torch.Tensor = first / (1 - beta1**count) / ((second / (1 - beta2**count)).sqrt() + group["eps"])
    return step


class UpdateCheck:
    """Comparison of one optimizer update with its fp64 definition."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self.kind = optimizer, type(optimizer).__name__
        self._named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        groups = enumerate(optimizer.param_groups)
        self._groups = {value: (place, group) for place, group in groups for value in group["params"]}
        self._weights: list[torch.Tensor] = []
        self._states: list[State] = []

    @property
    def lost(self) -> str:
        """Return why updates of this optimizer have no definition here, or ""."""
        library = type(self._optimizer).__module__
        if self.kind not in _DEFINED or library.partition(".")[0] != "torch":
            return f"updates of {library}.{self.kind} have no definition"
        groups = self._optimizer.param_groups
        odd = next((name for name, plain in _PLAIN.items() for group in groups if group.get(name, plain) != plain), "")
        return f"updates of {self.kind} with {odd} have no definition" if odd else ""

    def before(self) -> None:
        """Copy weights and optimizer state before the update."""
        if self.lost:
            return
        self._weights = [value.detach().clone() for _, value in self._named]
        self._states = [
            {
                key: _dense(entry.detach()).clone()
                for key, entry in self._optimizer.state.get(value, {}).items()
                if isinstance(entry, torch.Tensor)
            }
            for _, value in self._named
        ]

    @torch.no_grad()
    def errors(self, rates: Sequence[float]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each parameter's error against its definition, in roundings of its format."""
        for (name, value), old, state in zip(self._named, self._weights, self._states, strict=not self.lost):
            if value.grad is None or value not in self._groups:
                continue
            place, group = self._groups[value]
            weight, rate = old.double(), rates[place]
            count = float(state["step"]) + 1 if "step" in state else 1.0
            share = float(group["weight_decay"])
            slope = _dense(value.grad).double()
            if not group.get("decoupled_weight_decay", self.kind in ("AdamW", "Adafactor")):
                slope, share = slope + weight * share, 0.0
            reach = min(rate, 1 / math.sqrt(count)) if self.kind == "Adafactor" else rate
            expected = weight * (1.0 - rate * share) - reach * self._step(slope, weight, group, state, count)
            off, moved, size = (
                torch.linalg.vector_norm(each)
                for each in (value.detach().double() - expected, expected - weight, weight)
            )
            roundings = _OF_STEP + self._of_corrections(group, count)
            # What a moment loses below its format's normal numbers, as of a gradient that is rounding alone.
            least = value.numel() ** 0.5 * float(torch.finfo(value.dtype).smallest_normal)
            smallest = group["eps"] if self.kind in ("Adam", "AdamW") else _EPS
            unit = torch.finfo(value.dtype).eps / 2  # the largest relative error of one operation
            limit = unit * (_OF_WEIGHTS * size + roundings * moved) + least * rate / (smallest or _EPS)
            yield name, torch.where(off == 0, 0.0, off / limit)
            for key, terms in self._moments(slope, state, group).items():
                kept = _dense(self._optimizer.state[value][key]).double()
                off, *sizes = (torch.linalg.vector_norm(each) for each in (kept - sum(terms), *terms))
                yield name, off / (unit * _OF_MOMENTS * sum(sizes) + least)

    def _moments(self, slope: torch.Tensor, state: State, group: Group) -> dict[str, tuple[torch.Tensor, ...]]:
        """Return the terms that sum to each optimizer moment after the update."""
        if self.kind == "SGD":
            beta = group["momentum"]
            kept = (state["momentum_buffer"].double() * beta,) if "momentum_buffer" in state else ()
            return {"momentum_buffer": (*kept, slope)} if beta else {}
        if self.kind not in ("Adam", "AdamW"):
            return {}
        found = dict(zip(("exp_avg", "exp_avg_sq"), adam_moments(slope, state, group), strict=True))
        return {key: terms if state else terms[1:] for key, terms in found.items()}

    def _step(
        self, slope: torch.Tensor, weight: torch.Tensor, group: Group, state: State, count: float
    ) -> torch.Tensor:  # fmt: skip
        """Return the expected update, divided by the learning rate."""
        if self.kind == "SGD":  # its first momentum is the gradient
            return (
                state["momentum_buffer"].double() * group["momentum"] + slope if "momentum_buffer" in state else slope
            )
        if self.kind == "Adafactor":
            return _adafactor(slope, state, weight, group, count)
        first, second = (old + new for old, new in adam_moments(slope, state, group))
        return adam_step(first, second, group, count)

    def _of_corrections(self, group: Group, count: float) -> float:
        """Return the rounding error of Adam's fp32 bias corrections.

        In units of the corrections these are 1 / (1 - beta**t) and, below the root, half as many.
        """
        if self.kind not in ("Adam", "AdamW"):
            return 0.0
        first, second = (1 - beta**count for beta in group["betas"])
        return float(1 / first + 0.5 / second)


def _dense(value: torch.Tensor) -> torch.Tensor:
    return value if value.layout == torch.strided else value.to_dense()


def _adafactor(slope: torch.Tensor, state: State, weight: torch.Tensor, group: Group, count: float) -> torch.Tensor:
    """Return the update of torch's Adafactor.

    The moment of a matrix is the product of its means over rows and columns, divided by the mean of all.
    """
    share, (eps, least) = count ** group["beta2_decay"], group["eps"]
    eps = _EPS if eps is None else eps
    if slope.dim() > 1:
        rows, columns = (
            (before := state[key].double() if key in state else torch.zeros_like(mean)) + (mean - before) * share
            for key, mean in (
                ("row_var", slope.square().mean(-1, keepdim=True)), ("col_var", slope.square().mean(-2, keepdim=True))
            )
        )  # fmt: skip
        moment = rows * columns / rows.mean(-2, keepdim=True).clamp(min=eps)
    else:
        before = state["variance"].double() if "variance" in state else torch.zeros_like(slope)
        moment = before + (slope.square() - before) * share
    step = slope / moment.clamp(min=eps**2).sqrt()
    step = step / max(1.0, float(step.square().mean().sqrt()) / group["d"])
    scaled: torch.Tensor = step * max(least, float(weight.square().mean().sqrt()))
    return scaled
