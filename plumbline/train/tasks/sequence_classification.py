"""Sequence classification: one label per row, from the dataset."""

from __future__ import annotations

from plumbline.schema.spec import ModelSpec
from plumbline.train.tasks import Task


class _SequenceClassification(Task):
    head = "SequenceClassification"

    def head_products(self, model: ModelSpec) -> tuple[int, int]:
        return 0, model.hidden_size * model.hidden_size + model.hidden_size * (model.num_labels or 0)


TASK = _SequenceClassification()
