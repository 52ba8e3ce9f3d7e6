"""Production choices of a training, each of which can be exchanged: precision, attention, compiler, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from plumbline.errors import ConfigurationError
from plumbline.schema.spec import Precision, RunSpec, SpeedSpec
from plumbline.train.compat.transformers import recompute_layers, takes_made_masks
from plumbline.train.context import Context
from plumbline.train.engine import Clock, Engine
from plumbline.train.failure import TrainingFailedError
from plumbline.train.model import build_model, load_weights
from plumbline.train.production.rounding import round_values
from plumbline.train.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Choices:
    """Everything at production settings that may choose a different kernel."""

    speed: SpeedSpec
    single_tensor: bool = False
    """Whether the optimizer updates one tensor after the other, by torch's plain loop."""
    in_fp32: tuple[str, ...] = ()
    """Classes of modules that compute in fp32, without autocast."""
    rounded: Precision | None = None
    """Format to which each module's output is rounded, whatever the precision."""

    def change(self, **keys: Any) -> Choices:
        """Return the choices with changed keys of `speed`."""
        if keys.get("compile") is False:
            keys["compile_mode"] = "default"
        return replace(self, speed=self.speed.replace(**keys))


def plain_choices(speed: SpeedSpec) -> Choices:
    """Return the choices of the plain model in fp32, with values rounded to the format of `speed`."""
    plain = SpeedSpec(steps=speed.steps, precision="fp32", attention="eager", fused_optimizer=False)
    return Choices(plain, rounded=speed.precision)


def _check_attention(speed: SpeedSpec) -> None:
    from transformers.utils.import_utils import is_flash_attn_2_available

    if speed.attention == "flash_attention_2" and not is_flash_attn_2_available():
        hint = 'install the package flash-attn on a machine with a GPU, or set "sdpa"'
        raise TrainingFailedError(
            "flash_attention_2 is not available", code="setting", part="speed", where="speed", key="attention",
            hint=hint,
        )  # fmt: skip


def _model(context: Context, spec: RunSpec, choices: Choices, dropout: float) -> nn.Module:
    speed, device = choices.speed, context.ranks.device
    _check_attention(speed)
    model = build_model(spec, attention=speed.attention, dropout=dropout, device=device)
    load_weights(model, context.weights)
    model.train()
    if speed.gradient_checkpointing and not recompute_layers(model, draws=dropout > 0):
        where = f"model of the family {spec.model.family!r}"
        raise ConfigurationError("does not support checkpoints", where=where, key="gradient_checkpointing")
    if choices.rounded is not None:
        round_values(model, choices.rounded)
    for module in model.modules():
        if type(module).__name__ in choices.in_fp32:
            _compute_in_fp32(module, device)
    return model


def make_engine(
    context: Context, spec: RunSpec, choices: Choices, *, dropout: float, steps: int, ranks: Ranks,
    clock: Clock | None = None,
) -> Engine:  # fmt: skip
    """Return the engine of a training at these choices, not yet compiled, with the initial weights."""
    speed = choices.speed
    engine = Engine(
        spec, _model(context, spec, choices, dropout), ranks, steps=steps, precision=speed.precision, part="speed",
        fused=speed.fused_optimizer, clock=clock, optimizer=speed.optimizer, is_sharded=speed.distributed == "fsdp",
        distributed={"bucket_cap_mb": speed.ddp_bucket_mb, "static_graph": speed.ddp_static_graph},
    )  # fmt: skip
    # A compiled model does not read the mask: it keeps the one that it always makes.
    engine.makes_masks = not speed.compile and takes_made_masks(engine.bare)
    engine.padding = speed.padding
    if speed.padding == "packed" and not engine.makes_masks:
        hint = 'install transformers 5.0 or newer, or set padding = "longest"'
        raise ConfigurationError("this model accepts no mask of packed rows", where="speed", key="padding", hint=hint)
    for group in engine.optimizer.param_groups:
        if choices.single_tensor:
            group |= {"fused": False, "foreach": False}
        elif speed.foreach_optimizer is not None:
            group["foreach"] = speed.foreach_optimizer
    return engine


def compile_model(engine: Engine, speed: SpeedSpec) -> None:
    """Compile the engine's model if `speed` says so."""
    if speed.compile:
        engine.keeps_graphs = speed.compile_mode in {"reduce-overhead", "max-autotune"}
        engine.model.compile(mode=speed.compile_mode)


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
