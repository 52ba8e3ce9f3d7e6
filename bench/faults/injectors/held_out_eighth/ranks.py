"""Eighth held-out set: faults of the second of two processes; a single process has none."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import engine, learn
from plumbline.train.engine import Engine


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


def second_process_reads_the_first_half() -> None:
    """The second process of `speed` trains on the rows of the first one."""
    if _is_second():
        wrap_while(
            during("speed"), Engine, "_micro_batches",
            lambda plain, self, batch: plain(
                self, {name: values.roll(len(values) // 2, 0) for name, values in batch.items()}
            ),
        )  # fmt: skip


def second_process_has_masks_of_the_first() -> None:
    """The second process of the curve has the dropout masks of the first one's rows."""

    def wrap(feeds: Any) -> Any:
        def first(self: Any, local: Any, micro: int) -> None:
            feeds(self, local, micro)
            self._clock.first_row = micro * len(local["labels"])

        return first

    if _is_second():
        wrap_method(learn._DropoutSetter, "feeds", wrap)


def second_process_computes_in_fp32() -> None:
    """The second process of the curve computes in fp32 where the task says bf16."""
    if _is_second():
        wrap_while(during("learn"), engine, "autocast", lambda *_: contextlib.nullcontext())


def second_process_loses_updates() -> None:
    """The second process of `speed` leaves out every second update of its copy of the weights."""

    def lost(plain: Any, *lists: Any, **named: Any) -> None:
        if int(lists[5][0]) % 2:
            plain(*lists, **named)

    if _is_second():
        wrap_while(during("speed"), torch, "_fused_adamw_", lost)
