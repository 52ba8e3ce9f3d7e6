"""Optimizer, learning-rate schedule and loss scaler of torch, from the spec."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from plumbline.schema.evidence import OptimizerGroup
from plumbline.schema.spec import OptimizerSpec, Precision, RunSpec, ScheduleSpec
from plumbline.train.compat.torch import adafactor


def schedule_factor(schedule: ScheduleSpec, step: int, steps: int) -> float:
    """Return the fraction of the peak learning rate: linear warm-up, then decay."""
    warmup = min(schedule.warmup_steps, steps - 1)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule.kind == "constant":
        return 1.0
    left = max(0.0, (steps - step) / (steps - warmup))
    return left if schedule.kind == "linear" else _raised_cosine(left)


def _raised_cosine(left: float) -> float:
    """Return (1 - cos(pi * left)) / 2, bitwise reproducible; 0 <= left <= 1."""
    if left > 0.5:
        return 1.0 - _raised_cosine(1.0 - left)
    angle, term, total = math.pi * left, -0.5, 0.0
    for power in range(2, 26, 2):
        term *= -angle * angle / (power * (power - 1))
        total += term
    return total


def is_decayed(model: nn.Module, name: str) -> bool:
    """Return whether weight decay applies: not to biases or normalisation layers."""
    from plumbline.train.models.families import is_normalization

    return not name.endswith("bias") and not is_normalization(model.get_submodule(name.rpartition(".")[0]))


def make_optimizer(model: nn.Module, spec: OptimizerSpec, *, fused: bool, kind: str = "adamw") -> torch.optim.Optimizer:
    """Build a torch optimizer with two groups: with and without weight decay."""
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [value for name, value in named if is_decayed(model, name)], "weight_decay": spec.weight_decay},
        {"params": [value for name, value in named if not is_decayed(model, name)], "weight_decay": 0.0},
    ]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=spec.learning_rate, momentum=spec.betas[0], fused=fused or None)
    if kind == "adafactor":
        return adafactor(groups, lr=spec.learning_rate)
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=spec.betas, eps=spec.eps, fused=fused or None)


def make_schedule(optimizer: torch.optim.Optimizer, spec: RunSpec, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Build the learning-rate schedule for a part's number of steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule_factor(spec.schedule, step, steps))


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Return a loss scaler for fp16, else `None`."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None


def _scalars(group: dict[str, Any]) -> dict[str, bool | int | float | str | None]:
    scalars: dict[str, bool | int | float | str | None] = {}
    for name, value in sorted(group.items()):
        if name in {"params", "param_names"}:
            continue
        if isinstance(value, (tuple, list)):
            scalars |= {f"{name}.{place}": None if entry is None else float(entry) for place, entry in enumerate(value)}
        else:
            scalars[name] = value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
    return scalars


def held_by(*optimizers: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters that optimizers update, in group order."""
    return [value for optimizer in optimizers for group in optimizer.param_groups for value in group["params"]]


def shown_rates(rates: tuple[float, ...]) -> float | tuple[float, ...]:
    """Return one rate if all groups share it, else all rates."""
    return rates[0] if len(set(rates)) == 1 else rates


def group_rates(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """Return the learning rate of each parameter group; of groups that compute their own, none."""
    return tuple(float(group["lr"]) for group in optimizer.param_groups if group["lr"] is not None)


def describe_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[OptimizerGroup, ...]:
    """Return each parameter group's settings, as the optimizer stores them."""
    names = {id(value): name for name, value in model.named_parameters()}
    return tuple(
        OptimizerGroup(
            settings={"class": type(optimizer).__name__, **_scalars(group)},
            parameters=tuple(names.get(id(value), "?") for value in group["params"]),
        )
        for group in optimizer.param_groups
    )
