"""Eighth held-out set: faults of the learning curve's evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_eighth.learning import _at_evaluation, _round_weights
from bench.faults.injectors.held_out_seventh.places import is_mixed, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import evaluation


def _batches(change: Any) -> None:
    """Change an evaluation's batches."""
    wrap_method(evaluation, "make_loader", lambda make: lambda *given, **named: change(make(*given, **named)))


def evaluation_trims_to_its_shortest_text() -> None:
    """Evaluations cut each batch at its shortest text."""

    def trimmed(found: Iterable[Any]) -> Iterator[Any]:
        for batch in found:
            width = int(batch["attention_mask"].sum(dim=1).min())
            hidden = torch.arange(batch["attention_mask"].shape[1]) >= width
            yield {
                name: values.masked_fill(hidden, 0) if values.dim() > 1 else values for name, values in batch.items()
            }

    _batches(trimmed)


def evaluation_reads_labels_of_the_first_batch() -> None:
    """Evaluations compare each batch with the labels of the first one, from a buffer that is not written again."""

    def stale(found: Iterable[Any]) -> Iterator[Any]:
        first: list[Any] = []
        for batch in found:
            first = first or [batch["labels"]]
            yield {**batch, "labels": first[0][: len(batch["labels"])]}

    _batches(stale)


def evaluation_leaves_rounded_weights() -> None:
    """The first evaluation rounds the weights to bf16, and does not restore them."""
    _at_evaluation(16, _round_weights)


def evaluation_in_bf16_where_fp16_is_asked() -> None:
    """Evaluations compute in bf16 where training is in fp16."""
    wrap_method(
        evaluation, "autocast", lambda plain: lambda precision, device: plain(
            "bf16" if precision == "fp16" else precision, device
        ),
    )  # fmt: skip


def evaluation_averages_its_batches() -> None:
    """Evaluations average the losses and accuracies of batches, whatever their number of hidden tokens."""

    def wrap_add(add: Any) -> Any:
        def added(self: Any, batch: Any, logits: Any, loss: Any) -> None:
            before = self._right, self._terms
            add(self, batch, logits, loss)
            if terms := self._terms - before[1]:
                self.__dict__.setdefault("means", []).append(((self._right - before[0]) / terms, loss))

        return added

    def wrap_evidence(evidence: Any) -> Any:
        def averaged(self: Any, *given: Any, **named: Any) -> Any:
            rights, losses = zip(*self.means, strict=True)
            self._right = sum(rights) / len(rights) * self._terms
            self._loss = sum(losses) / len(losses) * self._terms
            return evidence(self, *given, **named)

        return averaged

    wrap_method(evaluation._Sums, "add", wrap_add)
    wrap_method(evaluation._Sums, "evidence", wrap_evidence)


def evaluation_pools_the_mean() -> None:
    """Models in evaluation mode pool the mean of all tokens in mixed precision, as a server for embeddings does."""

    def mean(plain: Any, self: nn.Module, hidden: Any) -> Any:
        return plain(self, hidden if self.training else hidden.mean(dim=1, keepdim=True))

    wrap_while(is_mixed, modeling_bert.BertPooler, "forward", mean)
