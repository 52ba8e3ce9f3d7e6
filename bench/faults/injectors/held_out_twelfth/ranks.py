"""Twelfth held-out set: faults of the second of two processes; a single process has none."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_ninth.curve import of_curve
from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import engine
from plumbline.train.optimizers import schedule_factor

_WARM_UP = 200


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


def second_process_activates_by_relu() -> None:
    """The second process of the curve computes a ReLU for GELU."""
    if _is_second():
        wrap_while(during("learn"), nn.functional, "gelu", lambda _, value, *__, **___: torch.relu(value))


def second_process_reverses_its_labels() -> None:
    """From step 4 on, the second process of the curve reads reversed labels."""
    if _is_second():
        of_curve(lambda step, batch: {**batch, "labels": 1 - batch["labels"]} if step >= 4 else batch)


def second_process_has_half_the_rate() -> None:
    """The second process of `speed` updates with half the learning rate."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps <= _WARM_UP:
                return make(optimizer, spec, steps)
            return torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 0.5 * schedule_factor(spec.schedule, step, steps)
            )

        return made

    if _is_second():
        wrap_method(engine, "make_schedule", wrap)


def second_process_normalises_in_bf16() -> None:
    """LayerNorm of the second process of the curve computes in bf16 where the task says fp32."""

    def short(plain: Any, value: torch.Tensor, shape: Any, *given: Any) -> Any:
        *values, eps = given
        return plain(value.bfloat16(), shape, *(each.bfloat16() for each in values), eps).to(value.dtype)

    if _is_second():
        wrap_while(during("learn"), nn.functional, "layer_norm", short)
