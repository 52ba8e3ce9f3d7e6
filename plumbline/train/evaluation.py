"""Evaluation: one pass over fixed evaluation rows, without dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset
from torch.utils.hooks import RemovableHandle

from plumbline.schema.digest import digest_array
from plumbline.schema.evidence import EvaluationEvidence
from plumbline.schema.spec import Precision
from plumbline.train.batches import Batch, EvaluationRows, make_loader
from plumbline.train.digests import finite, host_array
from plumbline.train.models.families import input_fields
from plumbline.train.numerics import autocast
from plumbline.train.rows import FIELDS
from plumbline.train.tasks import Task

RESULTS = ("row_ids", "predictions", "logits")
"""Arrays of an evaluation that its record contains."""


class _Sums:
    """Running sums of loss and accuracy in an evaluation."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._kept: dict[str, list[NDArray[Any]]] = {"row_ids": [], "predictions": [], "logits": []}
        self._right_rows: list[NDArray[np.uint8]] = []
        self._fed: dict[str, list[NDArray[Any]]] = {"labels": [], "inputs": []}
        self._right, self._terms, self._loss = 0, 0, 0.0

    def add(self, batch: Batch, logits: NDArray[Any], loss: float) -> None:
        """Add a batch, with the sum of its terms' losses."""
        labels = batch["labels"].numpy()
        self._fed["labels"].append(labels)
        self._fed["inputs"].append(np.stack([batch[name].numpy() for name in FIELDS], axis=1))
        predictions, kept, correct, right = self._task.answers(logits, labels)
        counted = self._task.num_terms(labels)
        self._right, self._terms = self._right + correct, self._terms + counted
        self._loss += loss if counted else 0.0
        for name, array in (("row_ids", batch["row_ids"].numpy()), ("predictions", predictions), ("logits", kept)):
            self._kept[name].append(array)
        if right is not None:
            self._right_rows.append(right)

    def evidence(self, step: int, *, training_mode: bool) -> tuple[EvaluationEvidence, dict[str, NDArray[Any]]]:
        """Return the evaluation's evidence, and its arrays."""
        arrays, terms = {name: np.concatenate(pieces) for name, pieces in self._kept.items()}, self._terms
        found = EvaluationEvidence(
            step=step,
            num_rows=len(arrays["row_ids"]),
            rows_sha256=digest_array(arrays["row_ids"]),
            training_mode=training_mode,
            predictions_sha256=digest_array(arrays["predictions"]),
            logits_sha256=digest_array(arrays["logits"]),
            loss=finite(self._loss / terms) if terms else None,
            accuracy=self._right / terms if terms else None,
        )
        arrays |= {name: np.concatenate(pieces) for name, pieces in self._fed.items()}
        return found, arrays | ({"right": np.concatenate(self._right_rows)} if self._right_rows else {})


class Recount:
    """Loss and accuracy recomputed independently from a model's logits and labels.

    An evaluation's own numbers are compared with them, on any machine: rounding changes the logits, not what follows.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._right, self._terms, self._loss = 0, 0, 0.0

    def watching(self, model: nn.Module) -> RemovableHandle:
        """Recompute metrics from every forward pass of `model`."""
        return model.register_forward_hook(self._add, with_kwargs=True)

    def _add(self, _model: nn.Module, _given: Any, named: dict[str, Any], outputs: Any) -> None:
        loss = self._task.loss(outputs, named["labels"])
        found = self._task.recount(outputs.logits, named["labels"], loss)
        self._right += found.num_correct
        self._loss += found.loss
        self._terms += found.num_terms

    def metrics(self) -> tuple[float | None, float | None]:
        """Return loss and accuracy; `None` without any label."""
        terms = self._terms
        return (finite(self._loss / terms), self._right / terms) if terms else (None, None)


@torch.no_grad()
def evaluate(
    model: nn.Module, rows: Dataset[Any], *, task: Task, step: int, batch_size: int, precision: Precision,
    device: torch.device,
) -> tuple[EvaluationEvidence, dict[str, NDArray[Any]]]:  # fmt: skip
    """Run an evaluation; return its evidence and arrays."""
    was_training = model.training
    model.eval()
    sums = _Sums(task)
    names = input_fields(model)
    for batch in make_loader(rows, batch_size, device):
        fields = {name: batch[name].to(device) for name in names}
        with autocast(precision, device):
            outputs = model(**fields)
            loss = task.loss(outputs, fields["labels"])
        sums.add(batch, host_array(outputs.logits), float(loss.double()) * task.num_terms(batch["labels"]))
    during = any(module.training for module in model.modules())
    model.train(was_training)
    return sums.evidence(step, training_mode=during)


def evaluate_by_definition(
    model: nn.Module, rows: EvaluationRows, *, task: Task, step: int, batch_size: int, precision: Precision,
    device: torch.device,
) -> tuple[EvaluationEvidence, dict[str, NDArray[Any]]]:  # fmt: skip
    """Evaluate independently, without the library's data loader, mode switch or loss.

    Every row is used once, in order, with every module in evaluation mode, and summed row by row.
    """
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        module.training = False
    sums, names = _Sums(task), input_fields(model)
    with torch.no_grad():
        for first in range(0, len(rows), batch_size):
            fields = rows.__getitems__(list(range(first, min(first + batch_size, len(rows)))))
            batch = {name: torch.from_numpy(values) for name, values in fields.items()}
            with autocast(precision, device):
                outputs = model(**{name: batch[name].to(device) for name in names})
            logits, labels = host_array(outputs.logits), fields["labels"]
            alone = [(logits[row : row + 1], labels[row : row + 1]) for row in range(len(labels))]
            loss = sum((task.reference_loss(*row) or 0.0) * task.num_terms(row[1]) for row in alone)
            sums.add(batch, logits, loss)
    for module, mode in modes.items():
        module.training = mode
    return sums.evidence(step, training_mode=False)
