"""AdamW with the spec's settings, in primitive operations, for experiments and proofs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from plumbline.schema.spec import OptimizerSpec
from plumbline.train.optimizers import is_decayed
from plumbline.train.proof.update import State, adam_moments, adam_step


class AdamW:
    """AdamW as defined by Loshchilov and Hutter, with the spec's settings."""

    def __init__(self, model: nn.Module, spec: OptimizerSpec) -> None:
        self._spec, self._count, self._states = spec, 0, dict[str, State]()
        self._named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self._groups = {name: settings(model, name, spec, "AdamW") for name, _ in self._named}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the parameters from their current gradients."""
        self._count += 1
        for name, value in self._named:
            if value.grad is None:
                continue
            group = self._groups[name]
            first, second = (a + b for a, b in adam_moments(value.grad, self._states.get(name, {}), group))
            self._states[name] = {"exp_avg": first, "exp_avg_sq": second}
            value.mul_(1 - learning_rate * group["weight_decay"])
            value.sub_(learning_rate * adam_step(first, second, group, self._count))


def settings(model: nn.Module, name: str, spec: OptimizerSpec, kind: str) -> Mapping[str, Any]:
    """Return the settings that the spec gives a parameter's group of an optimizer of class `kind`."""
    decay = {"weight_decay": spec.weight_decay if is_decayed(model, name) else 0.0}
    own: dict[str, dict[str, Any]] = {
        "AdamW": {"betas": tuple(spec.betas), "eps": spec.eps, "amsgrad": False},
        "SGD": {"momentum": spec.betas[0], "dampening": 0, "nesterov": False},
        "Adafactor": {"beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0},
    }
    return decay | own.get(kind, {})


def other_settings(model: nn.Module, optimizer: torch.optim.Optimizer, spec: OptimizerSpec) -> Iterator[str]:
    """Yield the trained parameters whose group has other settings than the spec's."""
    groups = {value: group for group in optimizer.param_groups for value in group["params"]}
    for name, value in model.named_parameters():
        wanted = settings(model, name, spec, type(optimizer).__name__) if value.requires_grad else {}
        group = groups.get(value, {})
        if any(group.get(key) != each for key, each in wanted.items()):
            yield name
