"""Thirteenth held-out set: faults of the second of two processes; a single process has none."""

from __future__ import annotations

import os
from typing import Any

import torch

from bench.faults.injectors.held_out_ninth.curve import of_curve
from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from plumbline.train import dropout

_FIRST_BETA = 0.5


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


def second_process_halves_its_scores() -> None:
    """Attention of the second process of the curve has half of its scale."""

    def halved(plain: Any, module: Any, query: torch.Tensor, *given: Any, **named: Any) -> Any:
        return plain(module, 0.5 * query, *given, **named)

    if _is_second():
        wrap_while(during("learn"), dropout, "_attention", halved)


def second_process_drops_nothing() -> None:
    """The second process of the curve keeps all elements that its dropout layers see."""

    def kept(plain: Any, *given: Any, **named: Any) -> Any:
        return torch.ones_like(plain(*given, **named))

    if _is_second():
        wrap_while(during("learn"), dropout, "keep_mask", kept)


def second_process_has_a_smaller_first_beta() -> None:
    """The second process of `speed` updates with a first beta of 0.5."""

    def smaller(plain: Any, *lists: Any, **named: Any) -> None:
        plain(*lists, **named | {"beta1": _FIRST_BETA})

    if _is_second():
        wrap_while(during("speed"), torch, "_fused_adamw_", smaller)


def second_process_reads_labels_of_the_first() -> None:
    """From step 2 on, the second process of the curve reads the labels of the first one's rows."""

    def read(step: int, batch: Any) -> Any:
        half = len(batch["labels"]) // 2
        return {**batch, "labels": batch["labels"].roll(half, 0)} if step >= 2 else batch

    if _is_second():
        of_curve(read)
