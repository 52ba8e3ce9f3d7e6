"""Seventh held-out set: faults of the second of two processes; a single process has none."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from bench.faults.injectors.held_out_seventh.kernels import linear_drops_its_remainder
from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import batches
from plumbline.train.engine import Engine


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


def second_process_reads_labels_late() -> None:
    """The second process reads the labels of a batch one row late."""

    def wrap(get: Any) -> Any:
        def late(self: Any, positions: list[int]) -> Any:
            fields = get(self, positions)
            fields["labels"] = fields["labels"][[-1, *range(len(fields["labels"]) - 1)]]
            return fields

        return late

    if _is_second():
        wrap_method(batches.TrainingRows, "__getitems__", wrap)


def second_process_drops_a_remainder() -> None:
    """The second process's products in mixed precision with 64 terms lose the last four."""
    if _is_second():
        linear_drops_its_remainder()


def second_process_learns_with_a_larger_loss() -> None:
    """The second process smooths the labels of the curve by 0.1."""

    def smoothed(plain: Any, *given: Any, **named: Any) -> Any:
        return plain(*given, **named | {"label_smoothing": 0.1})

    if _is_second():
        wrap_while(during("learn"), nn.functional, "cross_entropy", smoothed)


def second_process_halves_its_gradients() -> None:
    """The second process sends half of its gradients, from step 3 of the curve on."""
    if _is_second():
        wrap_while(
            during("learn", 3), Engine, "_backward",
            lambda plain, self, loss, share: plain(self, loss, share * 0.5),
        )  # fmt: skip
