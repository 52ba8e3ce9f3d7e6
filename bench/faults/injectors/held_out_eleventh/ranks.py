"""Eleventh held-out set: faults of the second of two processes; a single process has none."""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from plumbline.train.engine import Engine


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


def second_process_has_a_larger_eps() -> None:
    """LayerNorm of the second process of the curve has an eps of 0.01."""
    if _is_second():
        wrap_while(during("learn"), nn.functional, "layer_norm", lambda plain, *given: plain(*given[:4], 1e-2))


def second_process_smooths_its_labels() -> None:
    """The second process of `speed` smooths its labels by 0.1."""

    def smoothed(plain: Any, *given: Any, **named: Any) -> Any:
        return plain(*given, **named | {"label_smoothing": 0.1})

    if _is_second():
        wrap_while(during("speed"), nn.functional, "cross_entropy", smoothed)


def second_process_multiplies_in_bf16() -> None:
    """Linear layers of the second process of the curve multiply in bf16 where the task says fp32."""

    def short(plain: Any, value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Any:
        found = plain(value.bfloat16(), weight.bfloat16()).to(value.dtype)
        return found if bias is None else found + bias

    if _is_second():
        wrap_while(during("learn"), nn.functional, "linear", short)


def second_process_loses_its_first_micro_batch() -> None:
    """From step 3 on, the second process of the curve loses the gradients of its first micro-batch."""
    count = itertools.count()

    def lost(plain: Any, self: Engine, loss: Any, share: float) -> None:
        plain(self, loss, share * (next(count) % self.spec.optimizer.accumulation_steps))

    if _is_second():
        wrap_while(during("learn", 3), Engine, "_backward", lost)
