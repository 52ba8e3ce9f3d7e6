"""Optimizer, schedule and loss scaling, as torch makes them from the spec."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plumbline.schema.evidence import OptimizerGroup
from plumbline.schema.spec import OptimizerSpec, Precision, RunSpec, ScheduleSpec

__all__ = ["describe_optimizer", "is_decayed", "make_optimizer", "make_scaler", "make_schedule", "schedule_factor"]


def schedule_factor(schedule: ScheduleSpec, step: int, steps: int) -> float:
    """The share of the peak learning rate at `step`: a linear rise, then a linear fall that ends just above zero."""
    warmup = min(schedule.warmup_steps, steps - 1)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return max(0.0, (steps - step) / (steps - warmup))


def is_decayed(model: nn.Module, name: str) -> bool:
    """Return whether weight decay applies: not to biases, nor to parameters of a normalisation."""
    from plumbline.train.families import is_normalization

    return not name.endswith("bias") and not is_normalization(model.get_submodule(name.rpartition(".")[0]))


def make_optimizer(model: nn.Module, spec: OptimizerSpec, *, fused: bool) -> torch.optim.Optimizer:
    """AdamW in two groups: with weight decay, and without it for biases and LayerNorms."""
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [value for name, value in named if is_decayed(model, name)], "weight_decay": spec.weight_decay},
        {"params": [value for name, value in named if not is_decayed(model, name)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=spec.betas, eps=spec.eps, fused=fused or None)


def make_schedule(optimizer: torch.optim.Optimizer, spec: RunSpec, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """The schedule over a part's own number of steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule_factor(spec.schedule, step, steps))


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Loss scaling, for fp16 alone."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None


def _scalars(group: dict[str, Any]) -> dict[str, bool | int | float | str | None]:
    found: dict[str, bool | int | float | str | None] = {}
    for name, value in sorted(group.items()):
        if name in {"params", "param_names"}:
            continue
        if isinstance(value, (tuple, list)):
            found |= {f"{name}.{place}": float(entry) for place, entry in enumerate(value)}
        else:
            found[name] = value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
    return found


def describe_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[OptimizerGroup, ...]:
    """Each group as the optimizer itself holds it."""
    names = {id(value): name for name, value in model.named_parameters()}
    return tuple(
        OptimizerGroup(
            settings={"class": type(optimizer).__name__, **_scalars(group)},
            parameters=tuple(names.get(id(value), "?") for value in group["params"]),
        )
        for group in optimizer.param_groups
    )
