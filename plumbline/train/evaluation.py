"""One pass over fixed rows of the evaluation split, without dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.digest import digest_array
from plumbline.schema.evidence import EvaluationEvidence
from plumbline.schema.spec import Precision
from plumbline.train.batches import EvaluationRows, make_loader
from plumbline.train.definitions import IGNORED, reference_loss
from plumbline.train.digests import finite, host_array
from plumbline.train.engine import MODEL_FIELDS
from plumbline.train.numerics import autocast

__all__ = ["evaluate"]


def _answers(logits: NDArray[Any], labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
    """Predictions, kept logits and the number of right answers of a batch.

    In masked language modelling a row's prediction is its number of hidden tokens found, its kept logit the mean
    log-probability of the true ones.
    """
    best = logits.argmax(axis=-1).astype(np.int64)
    if labels.ndim == 1:
        return best, logits.astype(np.float32), int((best == labels).sum())
    found = ((best == labels) & (labels != IGNORED)).sum(axis=1).astype(np.int64)
    losses = [reference_loss(row, label) for row, label in zip(logits, labels, strict=True)]
    kept = np.array([[0.0 if loss is None else -loss] for loss in losses], np.float32)
    return found, kept, int(found.sum())


@torch.no_grad()
def evaluate(
    model: nn.Module, rows: EvaluationRows, *, step: int, batch_size: int, precision: Precision, device: torch.device
) -> tuple[EvaluationEvidence, dict[str, NDArray[Any]]]:
    """The tenth rung, and the arrays that stand behind it."""
    was_training = model.training
    model.eval()
    kept: dict[str, list[NDArray[Any]]] = {"row_ids": [], "predictions": [], "logits": []}
    right, terms, loss = 0, 0, 0.0
    for batch in make_loader(rows, batch_size, device):
        labels = batch["labels"].numpy()
        with autocast(precision, device):
            outputs = model(**{name: batch[name].to(device) for name in MODEL_FIELDS})
        predictions, logits, correct = _answers(host_array(outputs.logits), labels)
        counted = int((labels != IGNORED).sum())
        right, terms = right + correct, terms + counted
        loss += float(outputs.loss.double()) * counted if counted else 0.0
        for name, array in (("row_ids", batch["row_ids"].numpy()), ("predictions", predictions), ("logits", logits)):
            kept[name].append(array)
    during = model.training
    model.train(was_training)
    arrays = {name: np.concatenate(pieces) for name, pieces in kept.items()}
    evidence = EvaluationEvidence(
        step=step,
        num_rows=len(arrays["row_ids"]),
        rows_sha256=digest_array(arrays["row_ids"]),
        training_mode=during,
        predictions_sha256=digest_array(arrays["predictions"]),
        logits_sha256=digest_array(arrays["logits"]),
        loss=finite(loss / terms) if terms else None,
        accuracy=right / terms if terms else None,
    )
    return evidence, arrays
