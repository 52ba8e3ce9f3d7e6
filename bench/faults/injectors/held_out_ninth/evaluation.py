"""Ninth held-out set: faults of the learning curve's evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_ninth.curve import in_curve, weights_of_the_start
from bench.faults.injectors.patching import wrap_method
from plumbline.train import batches, learn

_MOST_OF_A_LEG = 8


def _evaluated(change: Callable[..., Any]) -> None:
    """Call `change(plain, model, rows, **named)` for evaluations of learning curves."""
    wrap_method(
        learn, "evaluate",
        lambda plain: lambda model, rows, **named: change(plain, model, rows, **named),
    )  # fmt: skip


def _with_weights(model: nn.Module, values: dict[str, torch.Tensor], run: Callable[[], Any]) -> Any:
    """Return the result of `run` with different values of some parameters, which are restored."""
    kept = {name: model.get_parameter(name).detach().clone() for name in values}
    try:
        with torch.no_grad():
            for name, value in values.items():
                model.get_parameter(name).copy_(value)
        return run()
    finally:
        with torch.no_grad():
            for name, value in kept.items():
                model.get_parameter(name).copy_(value)


def evaluation_of_weights_averaged_with_the_first() -> None:
    """Evaluations use the average of the weights and those of the start."""
    first = weights_of_the_start()

    def averaged(plain: Any, model: Any, rows: Any, **named: Any) -> Any:
        values = {name: (value.detach() + first[name]) / 2 for name, value in model.named_parameters()}
        return _with_weights(model, values, lambda: plain(model, rows, **named))

    _evaluated(averaged)


def evaluation_with_cached_casts() -> None:
    """Later evaluations use the matrices of the first, whose casts are still cached."""
    cached: dict[str, Any] = {}

    def stale(plain: Any, model: Any, rows: Any, **named: Any) -> Any:
        if len(rows) <= _MOST_OF_A_LEG:
            return plain(model, rows, **named)
        matrices = {
            f"{name}.weight": module.weight.detach().clone()
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
        }
        for name, value in matrices.items():
            cached.setdefault(name, value)
        return _with_weights(model, cached, lambda: plain(model, rows, **named))

    _evaluated(stale)


def evaluation_leaves_its_head_training() -> None:
    """Evaluations leave the head in training mode, so that it drops elements."""
    acts = [False]

    def wrap(switch: Any) -> Any:
        def switched(self: Any) -> Any:
            result = switch(self)
            if acts[0]:
                self.dropout.train()
            return result

        return switched

    wrap_method(modeling_bert.BertForSequenceClassification, "eval", wrap)

    def training(plain: Any, model: Any, rows: Any, **named: Any) -> Any:
        acts[0] = True
        try:
            return plain(model, rows, **named)
        finally:
            acts[0] = False

    _evaluated(training)


def evaluation_hides_different_tokens() -> None:
    """Evaluations of the curve hide the tokens of a different epoch."""
    acts = in_curve()

    def wrap(fetch: Any) -> Any:
        def fetched(self: Any, rows: Any, epochs: Any) -> Any:
            is_evaluation = acts() and isinstance(self, batches.EvaluationRows)
            return fetch(self, rows, epochs + np.int64(7) if is_evaluation else epochs)

        return fetched

    wrap_method(batches._Encoded, "_fetch", wrap)
