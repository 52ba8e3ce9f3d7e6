"""Tenth held-out set: faults of the second of two processes; a single process has none."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, dropout


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


def second_process_decays_ten_times() -> None:
    """The second process of `speed` has ten times the weight decay."""

    def more(plain: Any, *lists: Any, **named: Any) -> None:
        plain(*lists, **named | {"weight_decay": 10 * named["weight_decay"]})

    if _is_second():
        wrap_while(during("speed"), torch, "_fused_adamw_", more)


def second_process_attends_causally() -> None:
    """Attention of the second process of the curve reads earlier tokens alone."""

    def causal(plain: Any, *given: Any, **named: Any) -> Any:
        *others, value, mask = given
        length = value.shape[-2]
        later = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        return plain(*others, value, later if mask is None else torch.minimum(mask, later), **named)

    if _is_second():
        wrap_while(during("learn"), dropout, "_attention", causal)


def second_process_is_a_batch_behind() -> None:
    """The second process of the curve reads the batch before, and the first one twice."""

    def wrap(get: Any) -> Any:
        def behind(self: Any, positions: list[int]) -> Any:
            back = BATCH if self._cycle > TRAIN_ROWS else 0
            return get(self, [max(place - back, place % BATCH) for place in positions])

        return behind

    if _is_second():
        wrap_method(batches.TrainingRows, "__getitems__", wrap)


def second_process_clips_to_twice_the_norm() -> None:
    """From step 5 on, the second process of the curve clips its gradients to twice the norm."""

    def twice(plain: Any, parameters: Any, norm: float, *given: Any, **named: Any) -> Any:
        return plain(parameters, 2 * norm, *given, **named)

    if _is_second():
        wrap_while(during("learn", 5), nn.utils, "clip_grad_norm_", twice)
