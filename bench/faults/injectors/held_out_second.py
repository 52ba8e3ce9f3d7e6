"""Held out a second time: written after the judge was mended with the first set in sight, before it saw these."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import adamw
from transformers.models.bert import modeling_bert

from bench.faults.injectors.data import _fetched
from bench.faults.injectors.held_out_model import _attention, _lowered, _new_release
from bench.faults.injectors.held_out_training import _own_update
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from bench.faults.injectors.training import _clip, _entropy, _evaluated, _factor, _loaded, _made
from bench.faults.world import TRAIN_ROWS, Content
from plumbline.data.rows import Row
from plumbline.staging import order
from plumbline.train import engine

# Rows, order, tokens.


def newline_at_the_end(content: Content, read: list[int], seed: int) -> None:
    """An export ends each text with a line break."""
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(one.text + "\n", one.label))


def labels_of_a_shard_shifted(content: Content, read: list[int], seed: int) -> None:
    """In one shard the labels are one row off."""
    labels = [row.label for row in content.train[64:128]]
    for place, label in enumerate([*labels[1:], labels[0]]):
        content.edit(64 + place, lambda one, label=label: Row(one.text, label))  # type: ignore[misc]


def words_too_long(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer gives up on words of more than six letters."""
    content.tokenizer["model"]["max_input_chars_per_word"] = 6


def shards_shuffled_alone() -> None:
    """Shards are shuffled, the rows within them are not."""
    wrap_method(
        order,
        "_shuffled",
        lambda shuffled: (
            lambda count, *what: np.arange(count, dtype=np.int64) if what[0] == "rows" else shuffled(count, *what)
        ),
    )


def special_tokens_exchanged() -> None:
    """[CLS] and [SEP] changed places."""

    def change(batch: Any) -> None:
        ids = batch["input_ids"]
        rows, last = np.arange(len(ids)), batch["attention_mask"].sum(1) - 1
        ids[rows, 0], ids[rows, last] = ids[rows, last].copy(), ids[rows, 0].copy()

    _fetched(change)


def second_segment() -> None:
    """Every token is called one of a second segment."""
    _fetched(lambda batch: batch["token_type_ids"].fill(1))


def label_noise() -> None:
    """A loader flips a label in each batch by a generator that nobody seeded."""
    noise = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))

    def change(batch: Any) -> None:
        place = noise.integers(len(batch["labels"]))
        batch["labels"][place] = 1 - batch["labels"][place]

    _fetched(change)


# Weights, modules, randomness.


def layers_crossed() -> None:
    """Two layers of a checkpoint were renamed into each other."""

    def change(model: Any) -> None:
        one, other = (list(layer.parameters()) for layer in model.bert.encoder.layer)
        with torch.no_grad():
            for a, b in zip(one, other, strict=True):
                kept = a.clone()
                a.copy_(b)
                b.copy_(kept)

    after_build(change)


def embeddings_twice_as_large() -> None:
    """The table of positions was drawn with twice the spread."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.bert.embeddings.position_embeddings.weight.mul_(2)

    after_build(change)


def adapter_left_in() -> None:
    """A layer of an earlier fine-tuning is still there, and unused."""

    def change(model: Any) -> None:
        model.bert.encoder.layer[0].adapter = nn.Linear(32, 4)

    after_build(change)


def one_draw_too_many() -> None:
    """Something draws once after generators are seeded."""
    replace_everywhere("seed_generators", lambda seed: lambda value: (seed(value), torch.rand(1))[0])


def dropout_from_step_three() -> None:
    """From the fourth step on a callback leaves dropout on."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            for module in self.bare.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.1 if number >= 3 else 0.0
            return step(self, number, batch)

        return stepped

    wrap_method(engine.Engine, "step", wrap)


# Number formats.


def contexts_in_bf16() -> None:
    """Attention's product with the values in bf16."""
    matmul = torch.matmul
    lower = _lowered(matmul, torch.bfloat16)
    torch.matmul = lambda a, b, **rest: lower(a, b) if b.dim() == 4 and b.shape[-1] < b.shape[-2] else matmul(a, b)


def embeddings_in_fp16() -> None:
    """Embeddings come out in fp16, and go on in fp32."""

    def change(model: Any) -> None:
        model.bert.embeddings.register_forward_hook(
            lambda _m, _i, output: output.half().float() if output.dtype == torch.float32 else output
        )

    after_build(change)


def residual_in_bf16() -> None:
    """One layer hands its output on in bf16."""

    def change(model: Any) -> None:
        model.bert.encoder.layer[0].output.register_forward_hook(
            lambda _m, _i, output: output.bfloat16().float() if output.dtype == torch.float32 else output
        )

    after_build(change)


# Operators.


def one_eps() -> None:
    """One LayerNorm has another eps."""

    def change(model: Any) -> None:
        model.bert.encoder.layer[1].attention.output.LayerNorm.eps = 1e-5

    after_build(change)


def values_from_keys() -> None:
    """In one layer values are computed with the keys' weights."""

    def change(model: Any) -> None:
        attention = model.bert.encoder.layer[1].attention.self
        key = attention.key
        attention.value.forward = lambda states: functional.linear(states, key.weight, key.bias)

    after_build(change)


def silu_in_one_layer() -> None:
    """SiLU in the place of GELU in one layer."""

    def change(model: Any) -> None:
        model.bert.encoder.layer[0].intermediate.intermediate_act_fn.forward = functional.silu

    after_build(change)


def mask_shifted() -> None:
    """The attention mask is applied one place further."""
    _attention(lambda mask, q: None if mask is None else mask.roll(1, -1))


def scaled_as_if_dropped() -> None:
    """Dropout drops nothing, and scales all the same."""
    functional.dropout = lambda value, p=0.5, training=True, inplace=False: value / 0.9 if training else value


# Loss and gradients.


def loss_halved() -> None:
    """The loss is divided by the number of micro-batches in the model already."""
    _entropy(lambda entropy: lambda scores, labels, *args, **rest: entropy(scores, labels, *args, **rest) / 2)


def little_smoothing() -> None:
    """Labels are smoothed by a hundredth."""
    _entropy(lambda entropy: lambda scores, labels, *args, **rest: entropy(scores, labels, label_smoothing=0.01))


def labels_shifted_in_the_loss() -> None:
    """The loss holds each position against the label after it, as for a causal model."""

    def wrap(entropy: Any) -> Any:
        return lambda scores, labels, *args, **rest: entropy(scores, labels.roll(-1), *args, **rest)

    _entropy(wrap)


def clipping_with_a_margin() -> None:
    """Clipping adds a hundredth to the norm before it divides."""

    def wrap(_clip: Any) -> Any:
        def clipped(parameters: Any, most: float, *args: Any, **rest: Any) -> None:
            gradients = [value.grad for value in parameters if value.grad is not None]
            total = torch.stack([gradient.norm() for gradient in gradients]).norm()
            for gradient in gradients:
                gradient.mul_((most / (total + 0.01)).clamp(max=1.0))

        return clipped

    _clip(wrap)


def gradients_centred() -> None:
    """The mean of each row is taken off the gradients of matrices."""

    def change(model: Any) -> None:
        for value in model.bert.encoder.parameters():
            if value.dim() > 1:
                value.register_hook(lambda gradient: gradient - gradient.mean(-1, keepdim=True))

    after_build(change)


def first_layer_halved() -> None:
    """What goes back into the first layer is halved."""

    def change(model: Any) -> None:
        for value in model.bert.encoder.layer[0].parameters():
            value.register_hook(lambda gradient: gradient / 2)

    after_build(change)


# Optimizer and schedule.


def betas_of_one_group() -> None:
    """Parameters that do not decay have other betas."""

    def change(make: Any) -> Any:
        def made(*args: Any, **rest: Any) -> Any:
            optimizer = make(*args, **rest)
            optimizer.param_groups[1]["betas"] = (0.8, 0.999)
            return optimizer

        return made

    _made(change)


def updates_bounded() -> None:
    """No element of an update is larger than half the learning rate."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.sub_(group["lr"] * (first / (second.sqrt() + group["eps"])).clamp(-0.5, 0.5))

    _own_update(rule)


def weights_in_bf16_from_step_five() -> None:
    """From the sixth update on weights are kept in bf16."""
    counts: dict[int, int] = {}

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **rest: Any) -> Any:
            result = step(self, *args, **rest)
            counts[id(self)] = counts.get(id(self), 0) + 1
            if counts[id(self)] > 5:
                for group in self.param_groups:
                    for value in group["params"]:
                        value.data.copy_(value.data.bfloat16().to(value))
            return result

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def squared_decay() -> None:
    """The rate falls by a square in place of a line."""
    _factor(
        lambda factor: lambda schedule, step, steps: factor(schedule, step, steps) ** (2 if step > 2 else 1),
    )


def rate_never_below_a_third() -> None:
    """The rate falls to a third and stays there."""
    _factor(lambda factor: lambda schedule, step, steps: max(1 / 3, factor(schedule, step, steps)))


# Evaluation.


def last_batch_filled_up() -> None:
    """The last batch of the evaluation is filled up with copies, and all are counted."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            places = torch.arange(size) % len(batch["labels"])
            yield {name: value[places] for name, value in batch.items()}

    _loaded(change)


def evaluated_as_bf16_model() -> None:
    """For the evaluation the weights are rounded to bf16."""

    class Rounded:
        def __init__(self, model: Any) -> None:
            self._model, self._kept = model, [value.detach().clone() for value in model.parameters()]

        def __enter__(self) -> None:
            for value in self._model.parameters():
                value.data.copy_(value.data.bfloat16().to(value))

        def __exit__(self, *_: object) -> None:
            for value, kept in zip(self._model.parameters(), self._kept, strict=True):
                value.data.copy_(kept)

    _evaluated(Rounded)


# Controls.


def gelu_in_parts() -> None:
    """A release of torch with another kernel for GELU."""
    _new_release()
    functional.gelu = lambda value, approximate="none": value * (0.5 + 0.5 * torch.erf(value * 0.7071067811865476))


def sdpa_in_a_new_release() -> None:
    """A release of transformers that calls the fused attention."""
    _new_release()

    def attend(_module: Any, q: Any, k: Any, v: Any, mask: Any, **rest: Any) -> Any:
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=rest["scaling"])
        return found.transpose(1, 2).contiguous(), None

    modeling_bert.eager_attention_forward = attend


def weights_copied_first() -> None:
    """Products take a copy of each matrix; not a bit changes."""
    linear = functional.linear
    functional.linear = lambda x, w, b=None: linear(x, w.clone(), b)
