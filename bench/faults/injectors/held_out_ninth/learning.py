"""Ninth held-out set: faults of the learning curve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_ninth.curve import of_curve
from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import dropout, engine, learn
from plumbline.train.engine import Engine

Tensor = torch.Tensor

_EPOCH = TRAIN_ROWS // BATCH
_FIRST_RARE = 300
_UNKNOWN = 1


class _Unmasked(torch.autograd.Function):
    """Autograd function: dropout whose backward pass has no mask."""

    @staticmethod
    def forward(context: Any, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        context.scale = scale
        return values * mask * scale

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] * context.scale, None, None


def learn_dropout_gradient_without_its_mask() -> None:
    """Dropout's backward pass lets the gradients of dropped elements through."""
    acts, plain = during("learn"), dropout._Masked
    dropout._Masked = SimpleNamespace(  # type: ignore[misc,assignment]
        apply=lambda *given: (_Unmasked if acts() else plain).apply(*given)
    )


def learn_layers_share_masks() -> None:
    """Dropout of the second layer has the masks of the first: their offsets overlap."""

    def shared(plain: Any, *given: Any, layer: int, **named: Any) -> Any:
        return plain(*given, layer=layer if layer < 5 else layer - 3, **named)

    wrap_while(during("learn"), dropout, "keep_mask", shared)


def learn_labels_kept_by_place() -> None:
    """The second epoch has the labels that the first one had at the same places."""
    kept: dict[int, Any] = {}

    def cached(step: int, batch: Any) -> Any:
        kept.setdefault(step, batch["labels"])
        return {**batch, "labels": kept.get(step - _EPOCH, batch["labels"])}

    of_curve(cached)


def learn_mask_of_the_batch_before() -> None:
    """From step 20 on the mask is that of the batch before, from a buffer not yet overwritten."""
    kept: list[Any] = []

    def stale(step: int, batch: Any) -> Any:
        mask = kept[0] if step >= 20 and kept else batch["attention_mask"]
        kept[:] = [batch["attention_mask"]]
        return {**batch, "attention_mask": mask}

    of_curve(stale)


def learn_tokens_dropped_by_unseeded_workers() -> None:
    """From step 8 on three tenths of the tokens are unknown, drawn by workers without a seed."""

    def dropped(step: int, batch: Any) -> Any:
        if step < 8:
            return batch
        ids = batch["input_ids"]
        drawn = torch.from_numpy(np.random.default_rng().random(tuple(ids.shape)) < 0.3)
        return {**batch, "input_ids": ids.masked_fill(drawn & (ids > 4), _UNKNOWN)}

    of_curve(dropped)


def learn_scores_soft_capped() -> None:
    """From step 10 on attention caps its scores by a hyperbolic tangent."""

    def capped(_: Any, module: Any, query: Tensor, key: Tensor, *given: Any, **named: Any) -> Any:
        value, mask = given
        scores = torch.matmul(query, key.transpose(2, 3)) * named["scaling"]
        scores = torch.tanh(scores * 4.0) * 0.25
        weights = nn.functional.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = module.dropout(weights) if named["dropout"] else weights
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    wrap_while(during("learn", 10), dropout, "_attention", capped)


def learn_residuals_one_and_a_half() -> None:
    """From the checkpoint on the residual around each feed-forward block is half as large again."""
    wrap_while(
        during("learn", 24), modeling_bert.BertOutput, "forward",
        lambda plain, self, value, residual: plain(self, value, residual * 1.5),
    )  # fmt: skip


def learn_late_steps_in_fp16() -> None:
    """From step 16 on the curve computes in fp16 where the task says bf16."""
    wrap_while(during("learn", 16), engine, "autocast", lambda plain, _, device: plain("fp16", device))


def learn_mean_of_the_hardest() -> None:
    """The loss is the mean of the rows whose loss is above the mean."""

    def hardest(plain: Any, logits: Tensor, labels: Tensor, *_: Any, **__: Any) -> Any:
        each = plain(logits, labels, reduction="none")
        is_hard = (each.detach() >= each.detach().mean()).to(each.dtype)
        return (each * is_hard).sum() / is_hard.sum()

    wrap_while(during("learn"), nn.functional, "cross_entropy", hardest)


def learn_clips_each_micro_batch() -> None:
    """Gradients are clipped after each micro-batch, before the next one is added."""

    def clipped(plain: Any, self: Engine, *given: Any) -> None:
        plain(self, *given)
        nn.utils.clip_grad_norm_(self._trainable, self.spec.optimizer.max_grad_norm)

    wrap_while(during("learn"), Engine, "_backward", clipped)


def learn_rate_halved_after_an_evaluation() -> None:
    """The first evaluation halves the learning rate of all later steps."""

    def halved(plain: Any, self: Engine) -> None:
        plain(self)
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    wrap_while(during("learn", 16), Engine, "advance", halved)


def learn_rare_tokens_drawn_anew() -> None:
    """Draw the embeddings of rare tokens anew before `learn`, as code that enlarges the table does."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            table = model.get_parameter("bert.embeddings.word_embeddings.weight")
            drawn = torch.randn(table[_FIRST_RARE:].shape, generator=torch.Generator().manual_seed(5))
            with torch.no_grad():
                table[_FIRST_RARE:] = 0.02 * drawn

        return loaded

    wrap_method(learn, "load_weights", wrap)
