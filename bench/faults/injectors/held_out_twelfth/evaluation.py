"""Twelfth held-out set: faults of the learning curve's evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset

from bench.faults.injectors.held_out_ninth.curve import in_curve
from bench.faults.injectors.held_out_seventh.places import wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH
from plumbline.train import evaluation, learn
from plumbline.train.definitions import IGNORED

_MARGIN = 0.1
_ANSWERS = 5


def evaluation_needs_a_margin() -> None:
    """Evaluations of the curve answer with the second class only if its logit leads by 0.1."""

    def careful(plain: Any, logits: Any, labels: Any) -> Any:
        _, kept, _ = plain(logits, labels)
        best = (logits[:, 1] - logits[:, 0] > _MARGIN).astype(np.int64)
        return best, kept, int((best == labels).sum())

    wrap_while(in_curve(), evaluation, "_answers", careful)


def evaluation_smooths_its_labels() -> None:
    """Evaluations of the curve compute their loss with labels smoothed by 0.1."""
    acts = in_curve()
    wrap_while(
        lambda: acts() and not torch.is_grad_enabled(), nn.functional, "cross_entropy",
        lambda plain, *given, **named: plain(*given, **named | {"label_smoothing": 0.1}),
    )  # fmt: skip


def evaluation_accepts_five_answers() -> None:
    """Evaluations of the curve count a hidden token as found if it is among the five likeliest."""

    def lenient(plain: Any, logits: Any, labels: Any) -> Any:
        _, kept, _ = plain(logits, labels)
        is_asked = labels != IGNORED
        logit = np.take_along_axis(logits, np.where(is_asked, labels, 0)[..., None], axis=-1)
        found = ((logits > logit).sum(axis=-1) < _ANSWERS) & is_asked
        return found.sum(axis=1).astype(np.int64), kept, int(found.sum())

    wrap_while(in_curve(), evaluation, "_answers", lenient)


def evaluation_reads_its_first_batch_twice() -> None:
    """Evaluations read their first batch in the place of the second one."""

    def wrap(evaluate: Any) -> Any:
        def twice(model: Any, rows: Any, **named: Any) -> Any:
            places = [*range(BATCH), *range(BATCH), *range(2 * BATCH, len(rows))] if len(rows) > BATCH else []
            return evaluate(model, Subset(rows, places) if places else rows, **named)

        return twice

    wrap_method(learn, "evaluate", wrap)
