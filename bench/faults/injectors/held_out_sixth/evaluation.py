"""Sixth held-out set: faults of the evaluation."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn import functional

from bench.faults.injectors.training import _evaluated, _loaded
from bench.faults.world import LENGTH


def evaluated_as_int8_model() -> None:
    """The evaluation runs a copy whose weight matrices are quantised to eight bits."""

    @contextlib.contextmanager
    def quantised(model: Any) -> Any:
        kept = {name: value.detach().clone() for name, value in model.named_parameters()}
        for value in model.parameters():
            if value.dim() > 1:
                unit = value.data.abs().amax().clamp(min=1e-12) / 127
                value.data.copy_((value.data / unit).round() * unit)
        yield
        for name, value in model.named_parameters():
            value.data.copy_(kept[name])

    _evaluated(quantised)


def evaluated_by_an_export() -> None:
    """The evaluation runs an exported graph, which computes GELU by tanh."""

    @contextlib.contextmanager
    def exported(model: Any) -> Any:
        activations = [layer.intermediate.intermediate_act_fn for layer in model.bert.encoder.layer]
        for activation in activations:
            activation.forward = lambda value: functional.gelu(value, approximate="tanh")
        yield
        for activation in activations:
            del activation.forward

    _evaluated(exported)


def long_rows_not_evaluated() -> None:
    """The evaluation leaves out rows that fill the whole sequence."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            kept = batch["attention_mask"].sum(1) < LENGTH
            if bool(kept.any()):
                yield {name: values[kept] for name, values in batch.items()}

    _loaded(change)


def evaluation_padded_on_the_left() -> None:
    """The evaluation pads its rows at their beginning."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            turns = LENGTH - batch["attention_mask"].sum(1)
            moved = {
                name: torch.stack([row.roll(int(turn)) for row, turn in zip(batch[name], turns, strict=True)])
                for name in ("input_ids", "attention_mask", "token_type_ids")
            }
            yield {**batch, **moved}

    _loaded(change)


def evaluation_labels_one_row_late() -> None:
    """The evaluation pairs each row with the label of the row before it in the batch."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            yield {**batch, "labels": batch["labels"].roll(1, 0)}

    _loaded(change)


def evaluation_encodes_with_a_smaller_vocabulary() -> None:
    """The evaluation's server has an older vocabulary of 400 tokens, and reads the others as unknown."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            yield {**batch, "input_ids": batch["input_ids"].masked_fill(batch["input_ids"] >= 400, 1)}

    _loaded(change)
