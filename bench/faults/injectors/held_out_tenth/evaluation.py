"""Tenth held-out set: faults of the learning curve's evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Subset

from bench.faults.injectors.held_out_ninth.curve import in_curve
from bench.faults.injectors.held_out_seventh.places import wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import batches, context, evaluation, learn
from plumbline.train.definitions import IGNORED


def evaluation_drops_its_last_batch() -> None:
    """Evaluations leave out the rows that fill no whole batch."""

    def wrap(evaluate: Any) -> Any:
        def dropped(model: Any, rows: Any, *, batch_size: int, **named: Any) -> Any:
            whole = len(rows) // batch_size * batch_size or len(rows)
            return evaluate(model, Subset(rows, range(whole)), batch_size=batch_size, **named)

        return dropped

    wrap_method(learn, "evaluate", wrap)


def evaluation_of_training_rows() -> None:
    """Evaluations of the curve read the first rows of the training data."""

    def training(plain: Any, self: Any, count: int) -> Any:
        found = plain(self, count)
        found._start = 0
        return found

    wrap_while(in_curve(), context.Context, "evaluation_rows", training)


def evaluation_counts_positives() -> None:
    """Evaluations of the curve count rows of the second class as right, whatever their label."""

    def positives(plain: Any, *given: Any) -> Any:
        best, kept, _ = plain(*given)
        return best, kept, int((best == 1).sum())

    wrap_while(in_curve(), evaluation, "_answers", positives)


def evaluation_shows_the_hidden_tokens() -> None:
    """Evaluations of the curve read the tokens that they are to predict."""
    acts = in_curve()

    def wrap(fetch: Any) -> Any:
        def shown(self: Any, *given: Any) -> Any:
            batch = fetch(self, *given)
            if acts() and isinstance(self, batches.EvaluationRows):
                labels = batch["labels"]
                batch["input_ids"] = np.where(labels == IGNORED, batch["input_ids"], labels)
            return batch

        return shown

    wrap_method(batches._Encoded, "_fetch", wrap)
