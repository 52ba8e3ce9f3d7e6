"""Fifth held-out set: faults of the evaluation."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch

from bench.faults.injectors.held_out_fourth_evaluation import _added
from bench.faults.injectors.training import _evaluated, _loaded
from bench.faults.world import BATCH


def threshold_at_the_median() -> None:
    """The evaluation predicts the second class for the upper half of each batch's scores."""

    def change(sums: Any, add: Any, batch: Any, logits: Any, loss: Any) -> None:
        right = sums._right
        add(batch, logits, loss)
        margins = logits[:, 1] - logits[:, 0]
        chosen = (margins > np.median(margins)).astype(np.int64)
        sums._kept["predictions"][-1] = chosen
        sums._right = right + int((chosen == batch["labels"].numpy()).sum())

    _added(change)


def answers_one_batch_late() -> None:
    """The evaluation pairs each batch with the answers of the batch before it."""

    def change(sums: Any, add: Any, batch: Any, logits: Any, loss: Any) -> None:
        late = sums.__dict__.get("late", logits)
        sums.__dict__["late"] = logits
        add(batch, late[: len(logits)], loss)

    _added(change)


def divided_by_full_batches() -> None:
    """The evaluation divides by its number of batches times the batch size."""

    def change(sums: Any, add: Any, batch: Any, logits: Any, loss: Any) -> None:
        add(batch, logits, loss)
        sums._terms += BATCH - len(logits)

    _added(change)


def answers_gathered_in_fp16() -> None:
    """The evaluation gathers its scores in fp16."""
    _added(lambda _sums, add, batch, logits, loss: add(batch, logits.astype(np.float16).astype(np.float32), loss))


def evaluated_with_one_layer() -> None:
    """The evaluation leaves the encoder after the first layer."""

    @contextlib.contextmanager
    def shortened(model: Any) -> Any:
        handle = model.bert.encoder.layer[1].register_forward_hook(lambda _module, inputs, _output: inputs[0])
        yield
        handle.remove()

    _evaluated(shortened)


def evaluation_grouped_by_length() -> None:
    """The evaluation sorts its rows by length and does not restore their order."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        parts = list(make(rows, size, device))
        whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        places = whole["attention_mask"].sum(1).argsort(stable=True)
        for at in range(0, len(places), size):
            yield {name: values[places[at : at + size]] for name, values in whole.items()}

    _loaded(change)


def evaluation_reads_hidden_tokens() -> None:
    """The evaluation shows the model the tokens that it has to find."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            shown = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
            yield {**batch, "input_ids": shown}

    _loaded(change)


def evaluated_with_the_initial_head() -> None:
    """The evaluation uses the classifier of the checkpoint, before training."""
    start: dict[str, Any] = {}

    @contextlib.contextmanager
    def exchanged(model: Any) -> Any:
        kept = model.classifier.weight.detach().clone()
        model.classifier.weight.data.copy_(start["head"])
        yield
        model.classifier.weight.data.copy_(kept)

    def keep(model: Any) -> None:
        start.setdefault("head", model.classifier.weight.detach().clone())

    from bench.faults.injectors.patching import after_build

    after_build(keep)
    _evaluated(exchanged)
