"""Production choices of a training, each of which can be exchanged: precision, attention, compiler, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from plumbline.schema.spec import Precision, RunSpec, SpeedSpec
from plumbline.train.context import Context
from plumbline.train.engine import Clock, Engine
from plumbline.train.model import build_model, load_weights
from plumbline.train.production.rounding import round_values
from plumbline.train.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Choices:
    """Everything at production settings that may choose a different kernel."""

    precision: Precision
    attention: str
    compile: bool
    fused: bool
    single_tensor: bool = False
    """Whether the optimizer updates one tensor after the other, by torch's plain loop."""
    in_fp32: tuple[str, ...] = ()
    """Classes of modules that compute in fp32, without autocast."""
    rounded: Precision | None = None
    """Format to which each module's output is rounded, whatever the precision."""


def choices_of(speed: SpeedSpec) -> Choices:
    """Return the choices of the speed part."""
    return Choices(speed.precision, speed.attention, speed.compile, speed.fused_optimizer)


def make_engine(
    context: Context, spec: RunSpec, choices: Choices, *, dropout: float, steps: int, ranks: Ranks,
    clock: Clock | None = None,
) -> Engine:  # fmt: skip
    """Return the engine of a training at these choices, not yet compiled, with the initial weights."""
    device = context.ranks.device
    model = build_model(spec, attention=choices.attention, dropout=dropout, device=device)
    load_weights(model, context.weights)
    model.train()
    if choices.rounded is not None:
        round_values(model, choices.rounded)
    for module in model.modules():
        if type(module).__name__ in choices.in_fp32:
            _compute_in_fp32(module, device)
    engine = Engine(
        spec, model, ranks, steps=steps, precision=choices.precision, part="speed", fused=choices.fused, clock=clock
    )
    if choices.single_tensor:
        for group in engine.optimizer.param_groups:
            group |= {"fused": False, "foreach": False}
    return engine


def _compute_in_fp32(module: nn.Module, device: torch.device) -> None:
    """Run a module without autocast, on inputs in fp32."""
    plain: Callable[..., Any] = module.forward

    def forward(*given: Any, **named: Any) -> Any:
        with torch.autocast(device.type, enabled=False):
            return plain(*map(_widened, given), **{name: _widened(value) for name, value in named.items()})

    module.forward = forward


def _widened(value: Any) -> Any:
    is_short = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_short else value
