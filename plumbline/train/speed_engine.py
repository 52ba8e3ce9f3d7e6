"""Training engine at production (`speed`) settings, plain or compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plumbline.schema.errors import ConfigurationError
from plumbline.schema.spec import RunSpec, SpeedSpec
from plumbline.train.compat.transformers import recompute_layers, takes_made_masks
from plumbline.train.context import Context
from plumbline.train.engine import Clock, Engine
from plumbline.train.failure import TrainingFailedError
from plumbline.train.models.model import build_model, load_weights
from plumbline.train.ranks import Ranks


def _check_attention(speed: SpeedSpec) -> None:
    from transformers.utils.import_utils import is_flash_attn_2_available

    if speed.attention == "flash_attention_2" and not is_flash_attn_2_available():
        hint = 'install the package flash-attn on a machine with a GPU, or set "sdpa"'
        raise TrainingFailedError(
            "flash_attention_2 is not available", code="setting", part="speed", where="speed", key="attention",
            hint=hint,
        )  # fmt: skip


def _model(context: Context, spec: RunSpec, speed: SpeedSpec, dropout: float) -> nn.Module:
    _check_attention(speed)
    model = build_model(spec, attention=speed.attention, dropout=dropout, device=context.ranks.device)
    load_weights(model, context.weights)
    model.train()
    if speed.gradient_checkpointing and not recompute_layers(model, draws=dropout > 0):
        where = f"model of the family {spec.model.family!r}"
        raise ConfigurationError("does not support checkpoints", where=where, key="gradient_checkpointing")
    return model


def make_engine(
    context: Context, spec: RunSpec, speed: SpeedSpec, *, dropout: float, steps: int, ranks: Ranks,
    clock: Clock | None = None,
) -> Engine:  # fmt: skip
    """Build an engine at these settings with initial weights, not yet compiled."""
    engine = Engine(
        spec, _model(context, spec, speed, dropout), ranks, steps=steps, precision=speed.precision, part="speed",
        fused=speed.fused_optimizer, clock=clock, optimizer=speed.optimizer, is_sharded=speed.distributed == "fsdp",
        distributed={"bucket_cap_mb": speed.ddp_bucket_mb, "static_graph": speed.ddp_static_graph},
    )  # fmt: skip
    # A compiled model does not read the mask: it keeps the one that it always makes.
    engine.makes_masks = not speed.compile and takes_made_masks(engine.bare)
    engine.padding = speed.padding
    if speed.padding == "packed" and not engine.makes_masks:
        hint = 'install transformers 5.0 or newer, or set padding = "longest"'
        raise ConfigurationError("this model accepts no mask of packed rows", where="speed", key="padding", hint=hint)
    for group in engine.optimizer.param_groups if speed.foreach_optimizer is not None else ():
        group["foreach"] = speed.foreach_optimizer
    return engine


def compile_model(engine: Engine, speed: SpeedSpec) -> None:
    """Compile the engine's model if the `speed` settings request it."""
    engine.is_compiled = speed.compile
    if speed.compile:
        engine.keeps_graphs = speed.compile_mode in {"reduce-overhead", "max-autotune"}
        engine.model = compiled_form(engine.model, speed)


def compiled_form(model: nn.Module, speed: SpeedSpec) -> Any:
    """Return the compiled model."""
    return torch.compile(model, mode=speed.compile_mode)
