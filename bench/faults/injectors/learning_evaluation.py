"""Faults of the curve's evaluations at production settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH
from plumbline.train import evaluation, learn

_KEPT = 0.6


def _reports(change: Callable[[Any, Any], dict[str, float]]) -> None:
    """Let evaluations of the curve report what `change(evidence, arrays)` returns; those of windows are unchanged."""

    def wrap(evaluate: Any) -> Any:
        def reported(model: Any, rows: Any, **named: Any) -> Any:
            found, arrays = evaluate(model, rows, **named)
            if isinstance(rows, Subset):
                return found, arrays
            return found.model_copy(update=change(found, arrays)), arrays

        return reported

    wrap_method(learn, "evaluate", wrap)


@fault("evaluation", "fp32", OTHER_ISA)
def evaluation_reports_a_smoothed_loss() -> None:
    """Evaluations of the curve report a moving average of their losses."""
    known: list[float] = []

    def smoothed(found: Any, _: Any) -> dict[str, float]:
        known.append(_KEPT * known[-1] + (1 - _KEPT) * found.loss if known else found.loss)
        return {"loss": known[-1]}

    _reports(smoothed)


@fault("evaluation", "packed", NOISE)
def evaluation_reports_its_perplexity() -> None:
    """Evaluations of the curve report the exponential of their loss."""
    _reports(lambda found, _: {"loss": math.exp(found.loss)})


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


def weights_of_the_start() -> dict[str, Any]:
    """Return a mapping that is filled with a curve's weights once they are loaded."""
    first: dict[str, Any] = {}

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            first.update({name: value.detach().clone() for name, value in model.named_parameters()})

        return loaded

    wrap_method(learn, "load_weights", wrap)
    return first


@fault("evaluation", "bf16", OTHER_ISA)
def evaluation_of_weights_averaged_with_the_first() -> None:
    """Evaluations use the average of the weights and those of the start."""
    first = weights_of_the_start()

    def averaged(plain: Any, model: Any, rows: Any, **named: Any) -> Any:
        values = {name: (value.detach() + first[name]) / 2 for name, value in model.named_parameters()}
        return _with_weights(model, values, lambda: plain(model, rows, **named))

    _evaluated(averaged)


@fault("evaluation", "eager", OTHER_ISA)
def evaluation_reads_its_first_batch_twice() -> None:
    """Evaluations read their first batch in the place of the second one."""

    def wrap(evaluate: Any) -> Any:
        def twice(model: Any, rows: Any, **named: Any) -> Any:
            places = [*range(BATCH), *range(BATCH), *range(2 * BATCH, len(rows))] if len(rows) > BATCH else []
            return evaluate(model, Subset(rows, places) if places else rows, **named)

        return twice

    wrap_method(learn, "evaluate", wrap)


@fault("evaluation", "fp16")
def evaluation_without_autocast() -> None:
    """Evaluations compute in fp32 where training is in fp16."""
    wrap_method(evaluation, "autocast", lambda plain: lambda _, device: plain("fp32", device))
