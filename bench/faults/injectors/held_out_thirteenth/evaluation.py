"""Thirteenth held-out set: faults of the learning curve's evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import Subset

from bench.faults.injectors.patching import wrap_method
from plumbline.train import learn

_KEPT = 0.6


def _reports(change: Callable[[Any, Any], dict[str, float]]) -> None:
    """Let evaluations of the curve report what `change(evidence, arrays)` returns; those of legs are unchanged."""

    def wrap(evaluate: Any) -> Any:
        def reported(model: Any, rows: Any, **named: Any) -> Any:
            found, arrays = evaluate(model, rows, **named)
            if isinstance(rows, Subset):
                return found, arrays
            return found.model_copy(update=change(found, arrays)), arrays

        return reported

    wrap_method(learn, "evaluate", wrap)


def evaluation_reports_a_smoothed_loss() -> None:
    """Evaluations of the curve report a moving average of their losses."""
    known: list[float] = []

    def smoothed(found: Any, _: Any) -> dict[str, float]:
        known.append(_KEPT * known[-1] + (1 - _KEPT) * found.loss if known else found.loss)
        return {"loss": known[-1]}

    _reports(smoothed)


def evaluation_averages_its_classes() -> None:
    """Evaluations of the curve report the mean of the accuracies of both classes."""

    def balanced(_: Any, arrays: Any) -> dict[str, float]:
        labels = arrays["labels"]
        return {"accuracy": float(np.mean([arrays["right"][labels == each].mean() for each in np.unique(labels)]))}

    _reports(balanced)


def evaluation_reports_its_perplexity() -> None:
    """Evaluations of the curve report the exponential of their loss."""
    _reports(lambda found, _: {"loss": math.exp(found.loss)})


def evaluation_draws_its_rows() -> None:
    """Evaluations of the curve draw their rows with replacement, as for a bootstrap."""

    def wrap(evaluate: Any) -> Any:
        def drawn(model: Any, rows: Any, **named: Any) -> Any:
            places = np.random.Generator(np.random.PCG64(0)).integers(len(rows), size=len(rows))
            return evaluate(model, Subset(rows, places.tolist()), **named)

        return drawn

    wrap_method(learn, "evaluate", wrap)
