"""Seventh held-out set: faults of the learning curve's evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bench.faults.injectors.patching import replace_everywhere, wrap_method
from plumbline.train import evaluation


def _batches(change: Any) -> None:
    """Change the list of an evaluation's batches."""
    wrap_method(
        evaluation, "make_loader", lambda make: lambda *given, **named: iter(change(list(make(*given, **named))))
    )


def evaluation_fills_its_last_batch() -> None:
    """Evaluations fill the last batch with the first rows, and count them again."""

    def filled(found: list[Any]) -> Iterator[Any]:
        missing = len(found[0]["labels"]) - len(found[-1]["labels"])
        last = {name: torch.cat((values, found[0][name][:missing])) for name, values in found[-1].items()}
        yield from (*found[:-1], last)

    _batches(filled)


def evaluation_answers_in_order_of_length() -> None:
    """Evaluations feed each batch's texts by length, and compare with labels in the order of rows."""

    def ordered(found: list[Any]) -> Iterator[Any]:
        for batch in found:
            order = batch["attention_mask"].sum(dim=1).argsort(stable=True, descending=True)
            yield {name: values[order] if values.dim() > 1 else values for name, values in batch.items()}

    _batches(ordered)


def evaluation_of_weights_in_bf16() -> None:
    """The curve evaluates weights that were rounded to bf16, as those of an exported checkpoint."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, *given: Any, **named: Any) -> Any:
            kept = [(value, value.data) for value in model.parameters()]
            for value, data in kept:
                value.data = data.bfloat16().to(data.dtype)
            try:
                return evaluate(model, *given, **named)
            finally:
                for value, data in kept:
                    value.data = data

        return evaluated

    replace_everywhere("evaluate", wrap, among=("learn",))


def evaluation_without_autocast() -> None:
    """Evaluations compute in fp32 where training is in fp16."""
    wrap_method(evaluation, "autocast", lambda plain: lambda _, device: plain("fp32", device))
