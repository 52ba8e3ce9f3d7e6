"""Task of the recipe in CONTRIBUTING.md: find the tokens that were replaced, as ELECTRA does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from plumbline.data.staging.order import random_keys
from plumbline.schema.spec import ModelSpec, RunSpec
from plumbline.train.tasks import IGNORED, Labelling, Task

_PART = np.uint64(7)
"""One token of this number is replaced."""
_SMOOTHING = 0.1


def _labelling(spec: RunSpec, rows: Any) -> Labelling:
    num_tokens = rows.tokenizer.get_vocab_size(with_added_tokens=True)

    def label(batch: dict[str, Any], epochs: Any) -> None:
        ids, real = batch["input_ids"], batch["attention_mask"] == 1
        keys = np.stack([
            random_keys(ids.shape[1], "replaced", spec.seed, int(row), int(epoch))
            for row, epoch in zip(batch["row_ids"], epochs, strict=True)
        ])  # fmt: skip
        replaced = np.where(keys % _PART == 0, (keys >> np.uint64(32)).astype(np.int64) % num_tokens, ids)
        batch["labels"] = np.where(real, (replaced != ids).astype(np.int64), IGNORED)
        batch["input_ids"] = np.where(real, replaced, ids)

    return label


class _ReplacedTokens(Task):
    head = "TokenClassification"

    def head_products(self, model: ModelSpec) -> tuple[int, int]:
        return 2 * model.hidden_size, 0

    def labelling(self, spec: RunSpec, rows: Any) -> Labelling:
        return _labelling(spec, rows)

    def loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Train with smoothed labels, as the model's own loss does not."""
        return functional.cross_entropy(
            outputs.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=_SMOOTHING
        )

    def term_losses(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Define the same loss by exp and log."""
        every = [super(_ReplacedTokens, self).term_losses(scores, torch.full_like(labels, each)) for each in (0, 1)]
        return (1 - _SMOOTHING) * super().term_losses(scores, labels) + _SMOOTHING * sum(every) / 2


TASK = _ReplacedTokens()
