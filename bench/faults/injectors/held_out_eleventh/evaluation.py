"""Eleventh held-out set: faults of the learning curve's evaluations."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
from torch.utils.data import Subset
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_ninth.curve import in_curve
from bench.faults.injectors.held_out_seventh.places import wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import evaluation, learn

_LAST_LAYER = 1


def evaluation_answers_by_the_least_logit() -> None:
    """Evaluations of the curve answer with the class of the least logit, as if logits were distances."""

    def least(plain: Any, logits: Any, labels: Any) -> Any:
        _, kept, _ = plain(logits, labels)
        best = logits.argmin(axis=-1).astype(np.int64)
        return best, kept, int((best == labels).sum())

    wrap_while(in_curve(), evaluation, "_answers", least)


def evaluation_of_every_second_row() -> None:
    """Evaluations read the share of one of two processes, and do not gather the other one."""

    def wrap(evaluate: Any) -> Any:
        return lambda model, rows, **named: evaluate(model, Subset(rows, range(0, len(rows), 2)), **named)

    wrap_method(learn, "evaluate", wrap)


def evaluation_leaves_by_an_early_exit() -> None:
    """Evaluations of the curve leave the encoder before its last layer."""

    def leave(plain: Any, self: Any, hidden: Any, *given: Any, **named: Any) -> Any:
        is_skipped = not self.training and self.attention.self.layer_idx == _LAST_LAYER
        return hidden if is_skipped else plain(self, hidden, *given, **named)

    wrap_while(in_curve(), modeling_bert.BertLayer, "forward", leave)


def evaluation_never_resets_its_metrics() -> None:
    """Evaluations of the curve report loss and accuracy over all evaluations so far."""
    results: list[Any] = []

    def wrap(evaluate: Any) -> Any:
        def summed(model: Any, rows: Any, **named: Any) -> Any:
            found, arrays = evaluate(model, rows, **named)
            if isinstance(rows, Subset):
                return found, arrays
            results.append(found)
            right = sum(round(each.accuracy * each.num_rows) for each in results)
            means = {
                "loss": fmean(each.loss for each in results),
                "accuracy": right / sum(each.num_rows for each in results),
            }
            return found.model_copy(update=means), arrays

        return summed

    wrap_method(learn, "evaluate", wrap)
