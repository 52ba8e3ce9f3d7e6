"""Sequence classification: one label a row, from the dataset."""

from __future__ import annotations

from plumbline.schema.spec import ModelSpec
from plumbline.train.tasks import TrainingTask


def _head_products(model: ModelSpec) -> tuple[int, int]:
    return 0, model.hidden_size * model.hidden_size + model.hidden_size * (model.num_labels or 0)


TASK = TrainingTask("SequenceClassification", _head_products)
