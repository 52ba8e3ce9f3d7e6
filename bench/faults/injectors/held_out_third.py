"""Held out, third set: after TrainCheck's reproduced bugs, golden-loss changes and reports on public trackers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import adamw

from bench.faults.injectors.data import _fetched, _positions
from bench.faults.injectors.patching import after_build, replace_everywhere, step_counter, wrap_method
from bench.faults.injectors.training import _entropy, _factor
from bench.faults.world import BATCH, TRAIN_ROWS, Content
from plumbline.data.rows import Row
from plumbline.train import engine

# Files.


def _texts(content: Content, change: Callable[[str], str]) -> None:
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(change(one.text), one.label))


def full_stop_appended(content: Content, read: list[int], seed: int) -> None:
    """An export ends every text with a full stop."""
    _texts(content, lambda text: f"{text} .")


def first_letters_doubled(content: Content, read: list[int], seed: int) -> None:
    """A faulty repair of encodings doubles each text's first letter."""
    _texts(content, lambda text: text[:1] + text)


def columns_joined_twice(content: Content, read: list[int], seed: int) -> None:
    """A join of columns repeats each text's first word."""
    _texts(content, lambda text: f"{text.split(' ')[0]} {text}")


def byte_order_mark(content: Content, read: list[int], seed: int) -> None:
    """Each text begins with a byte order mark."""
    _texts(content, lambda text: f"\ufeff{text}")


def labels_inverted_in_a_third(content: Content, read: list[int], seed: int) -> None:
    """An annotator's file has its labels the wrong way round."""
    for row in range(0, TRAIN_ROWS, 3):
        content.edit(row, lambda one: Row(one.text, None if one.label is None else 1 - one.label))


def labels_all_of_one_class(content: Content, read: list[int], seed: int) -> None:
    """A column of labels was lost and filled with zeros."""
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(one.text, 0))


def halves_exchanged(content: Content, read: list[int], seed: int) -> None:
    """Two exports of half the dataset each are joined in the other order."""
    half = TRAIN_ROWS // 2
    content.train[:] = [*content.train[half:], *content.train[:half]]


# Batches.


def _set(field: str, change: Callable[[Any], Any]) -> None:
    _fetched(lambda batch: batch.__setitem__(field, change(batch)))


def labels_of_one_class_lost() -> None:
    """A mapping of label names knows only the first: all labels are 0."""
    _set("labels", lambda batch: np.zeros_like(batch["labels"]))


def labels_cast_through_bool() -> None:
    """Labels went through a negation: 0 and 1 are exchanged."""
    _set("labels", lambda batch: 1 - batch["labels"])


def same_batch_twice() -> None:
    """An iterator that is made anew gives the first batch again at the second step."""
    _positions(lambda positions: [place - BATCH if BATCH <= place < 2 * BATCH else place for place in positions])


def workers_with_one_seed() -> None:
    """Each pair of batches holds the same rows: loader workers share a seed."""
    _positions(lambda positions: [place - BATCH if (place // BATCH) % 2 else place for place in positions])


def sorted_within_the_batch() -> None:
    """Rows of a batch are sorted, as a sampler by length does."""
    _positions(lambda positions: sorted(positions, key=lambda place: (place * 5) % BATCH))


def epoch_never_set() -> None:
    """From the sixth batch on the first batches come again, as when an epoch's number is not passed on."""
    _positions(lambda positions: [place - 5 * BATCH if place >= 5 * BATCH else place for place in positions])


def unknown_tokens_in_the_middle() -> None:
    """A vocabulary that lacks an entry: one place in each text becomes the unknown token."""
    _fetched(lambda batch: batch["input_ids"][:, 5].fill(1))


def classification_token_lost() -> None:
    """The first special token is another one."""
    _fetched(lambda batch: batch["input_ids"][:, 0].fill(3))


def ids_clamped() -> None:
    """Ids beyond a smaller vocabulary are clamped to its end."""
    _set("input_ids", lambda batch: np.minimum(batch["input_ids"], 300))


def mask_one_short() -> None:
    """The attention mask leaves out the second token."""
    _fetched(lambda batch: batch["attention_mask"][:, 1].fill(0))


def hidden_places_shifted() -> None:
    """In masked language modelling, labels stand one place later than the tokens that were hidden."""
    _set("labels", lambda batch: np.roll(batch["labels"], 1, axis=1))


# Weights and model.


def _change(change: Callable[[Any], None]) -> None:
    def changed(model: Any) -> None:
        with torch.no_grad():
            change(model)

    after_build(changed)


def head_left_at_zero() -> None:
    """The head was never initialised."""
    _change(lambda model: model.classifier.weight.zero_())


def query_and_key_exchanged() -> None:
    """A conversion exchanges the names of query and key in one layer."""

    def change(model: Any) -> None:
        attention = model.bert.encoder.layer[0].attention.self
        kept = attention.query.weight.clone()
        attention.query.weight.copy_(attention.key.weight)
        attention.key.weight.copy_(kept)

    _change(change)


def layer_norms_start_at_half() -> None:
    """LayerNorm's scales start at one half."""
    _change(
        lambda model: [value.fill_(0.5) for name, value in model.named_parameters() if name.endswith("Norm.weight")]
    )


def weights_through_fp16_in_one_layer() -> None:
    """One layer of the checkpoint was saved in half precision."""
    _change(lambda model: [value.copy_(value.half().float()) for value in model.bert.encoder.layer[1].parameters()])


def a_head_more() -> None:
    """A second classifier was added and is never used."""
    after_build(lambda model: model.add_module("second_head", nn.Linear(32, 2)))


def positions_cut() -> None:
    """The table of positions has fewer rows than the checkpoint's."""

    def change(model: Any) -> None:
        table = model.bert.embeddings.position_embeddings
        table.weight = nn.Parameter(table.weight[:48].detach().clone())

    after_build(change)


# Random numbers.


def seeded_with_the_rank() -> None:
    """Generators are seeded with the seed plus the process's number, counted from 1."""
    replace_everywhere("seed_generators", lambda seed: lambda value: seed(value + 1))


def a_draw_at_each_step() -> None:
    """A callback draws a number at each step."""
    wrap_method(
        engine.Engine, "step",
        lambda step: lambda self, number, batch: (torch.rand(3), step(self, number, batch))[1],
    )  # fmt: skip


def hidden_dropout_on() -> None:
    """Dropout of the hidden layers alone stays on."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.output.dropout.p = 0.1

    after_build(change)


# Number formats.


def _hook(path: str, change: Callable[[Any], Any]) -> None:
    def build(model: Any) -> None:
        model.get_submodule(path).register_forward_hook(lambda _m, _i, output: change(output))

    after_build(build)


def _rounded(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda output: output.to(dtype).float() if output.dtype == torch.float32 else output


def query_in_bf16() -> None:
    """One layer's queries are rounded to bf16."""
    _hook("bert.encoder.layer.0.attention.self.query", _rounded(torch.bfloat16))


def last_norm_in_fp16() -> None:
    """The last LayerNorm hands its output on in fp16."""
    _hook("bert.encoder.layer.1.output.LayerNorm", _rounded(torch.float16))


def classifier_in_bf16() -> None:
    """The classifier's product is rounded to bf16."""
    _hook("classifier", _rounded(torch.bfloat16))


def products_in_fp16() -> None:
    """Every product of matrices takes its operands in fp16."""
    linear = functional.linear

    def half(x: Any, w: Any, b: Any = None) -> Any:
        if x.dtype != torch.float32:
            return linear(x, w, b)
        return linear(x.half().float(), w.half().float(), b)

    functional.linear = half


# Operators.


def one_residual_doubled() -> None:
    """One layer's output is counted twice in its residual."""
    _hook("bert.encoder.layer.0.output.dense", lambda output: output * 2)


def sigmoid_gelu() -> None:
    """GELU by its sigmoid approximation."""
    functional.gelu = lambda value, approximate="none": value * torch.sigmoid(1.702 * value)


def pooler_without_tanh() -> None:
    """The pooler's tanh is missing."""
    _hook("bert.pooler.dense", lambda output: torch.atanh(output.clamp(-0.999, 0.999)))


def softmax_over_another_axis() -> None:
    """Attention's softmax goes over the queries."""
    softmax = functional.softmax
    functional.softmax = lambda value, dim=-1, **rest: softmax(value, dim=-2 if value.dim() == 4 else dim, **rest)


def norm_of_a_large_eps() -> None:
    """LayerNorm has an eps of 1e-3."""
    norm = functional.layer_norm
    functional.layer_norm = lambda value, shape, weight=None, bias=None, eps=1e-5: norm(
        value, shape, weight, bias, 1e-3
    )


def scores_not_scaled() -> None:
    """In one layer attention's scores are twice as large."""
    _hook("bert.encoder.layer.1.attention.self.query", lambda output: output * 2)


def embeddings_not_normalised() -> None:
    """The embeddings' LayerNorm is applied twice."""
    _hook("bert.embeddings.LayerNorm", lambda output: functional.layer_norm(output, output.shape[-1:]))


def relu_in_one_layer() -> None:
    """One layer has ReLU."""
    _hook("bert.encoder.layer.1.intermediate.dense", lambda output: output.clamp(min=-0.01))


# Loss.


def loss_over_micro_batches_averaged_again() -> None:
    """The loss is divided by the number of micro-batches once too often."""
    _entropy(lambda entropy: lambda scores, labels, *a, **k: entropy(scores, labels, *a, **k) / 2)


def loss_doubled_as_by_a_sum_over_devices() -> None:
    """The loss is summed over two devices, not averaged."""
    _entropy(lambda entropy: lambda scores, labels, *a, **k: entropy(scores, labels, *a, **k) * 2)


def scores_scaled_before_the_loss() -> None:
    """Scores are divided by a temperature of 1.05."""
    _entropy(lambda entropy: lambda scores, labels, *a, **k: entropy(scores / 1.05, labels, *a, **k))


def confidence_penalty() -> None:
    """The loss rewards entropy a little."""

    def change(entropy: Any) -> Any:
        def penalised(scores: Any, labels: Any, *a: Any, **k: Any) -> Any:
            chance = functional.log_softmax(scores, -1)
            return entropy(scores, labels, *a, **k) + 0.02 * (chance.exp() * chance).sum(-1).mean()

        return penalised

    _entropy(change)


def loss_of_a_sentence_mean() -> None:
    """In masked language modelling the loss is divided by a fixed number of places."""
    _entropy(lambda entropy: lambda scores, labels, *a, **k: entropy(scores, labels, reduction="sum") / 40.0)


# Gradients.


def _before_clipping(change: Callable[[list[Any], int], None]) -> None:
    step = step_counter()

    def wrap(clip: Any) -> Any:
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            found = [value for value in parameters if value.grad is not None]
            change(found, step())
            return clip(found, *args, **kwargs)

        return clipped

    wrap_method(torch.nn.utils, "clip_grad_norm_", wrap)


def gradients_never_cleared() -> None:
    """Gradients are never set to zero."""
    torch.optim.Optimizer.zero_grad = lambda self, set_to_none=True: None


def averaged_over_one_process_too_many() -> None:
    """Gradients are divided by a third process that is not there."""
    _before_clipping(lambda found, _: [value.grad.mul_(2 / 3) for value in found])


def sign_flipped_in_the_head() -> None:
    """The head's gradients have the wrong sign."""
    _before_clipping(lambda found, _: [value.grad.neg_() for value in found[-2:]])


def embedding_gradients_sparse_lost() -> None:
    """The embedding's gradient loses every second row."""
    _before_clipping(lambda found, _: found[0].grad[::2].zero_())


def gradient_noise_added() -> None:
    """A constant is added to one layer's gradients."""
    _before_clipping(lambda found, _: found[6].grad.add_(1e-3))


def synchronised_every_other_step() -> None:
    """At every other step half of the gradients is lost, as when devices do not exchange them."""
    _before_clipping(lambda found, step: [value.grad.mul_(0.5) for value in found] if step % 2 else None)


def norm_clipped_by_value() -> None:
    """Gradients are clipped element by element, not by their norm."""
    torch.nn.utils.clip_grad_norm_ = lambda parameters, limit, *a, **k: torch.nn.utils.clip_grad_value_(
        parameters, 0.01
    )


def never_clipped() -> None:
    """Clipping was removed."""
    torch.nn.utils.clip_grad_norm_ = lambda parameters, limit, *a, **k: torch.tensor(0.0)


# Optimizer.


def _around_step(before: Callable[[Any], None] | None = None, after: Callable[[Any], None] | None = None) -> None:
    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                if before:
                    before(self)
                result = step(self, *args, **kwargs)
                if after:
                    after(self)
            return result

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def _values(optimizer: Any) -> list[Any]:
    return [value for group in optimizer.param_groups for value in group["params"]]


def decay_coupled_to_the_gradient() -> None:
    """Weight decay is added to the gradient, as Adam does, not AdamW."""

    def before(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for value in group["params"]:
                value.grad.add_(value, alpha=0.05 if group["weight_decay"] else 0.0)

    _around_step(before)


def second_moment_forgotten() -> None:
    """The second moment is reset after every step."""
    _around_step(after=lambda optimizer: [state["exp_avg_sq"].zero_() for state in optimizer.state.values()])


def weights_kept_in_bf16() -> None:
    """Weights are rounded to bf16 after every step."""
    _around_step(after=lambda optimizer: [value.copy_(value.bfloat16().float()) for value in _values(optimizer)])


def averaged_weights() -> None:
    """A moving average of the weights is trained with."""

    def after(optimizer: Any) -> None:
        kept = optimizer.__dict__.setdefault("averages", {})
        for value in _values(optimizer):
            last = kept.setdefault(id(value), value.clone())
            value.lerp_(last, 0.1)
            kept[id(value)] = value.clone()

    _around_step(after=after)


def head_updated_twice() -> None:
    """The head is in two groups, and moves twice."""

    def after(optimizer: Any) -> None:
        for value in _values(optimizer)[-1:]:
            value.sub_(optimizer.param_groups[0]["lr"] * torch.sign(value.grad))

    _around_step(after=after)


def decay_for_everything() -> None:
    """Biases and LayerNorms decay as well."""

    def wrap(make: Any) -> Any:
        def made(model: Any, spec: Any, **rest: Any) -> Any:
            optimizer = make(model, spec, **rest)
            for group in optimizer.param_groups:
                group["weight_decay"] = spec.weight_decay
            return optimizer

        return made

    replace_everywhere("make_optimizer", wrap, among=("engine",))


def betas_exchanged() -> None:
    """The betas of a recent paper: 0.9 and 0.95."""

    def wrap(make: Any) -> Any:
        def made(model: Any, spec: Any, **rest: Any) -> Any:
            optimizer = make(model, spec, **rest)
            for group in optimizer.param_groups:
                group["betas"] = (0.9, 0.95)
            return optimizer

        return made

    replace_everywhere("make_optimizer", wrap, among=("engine",))


# Schedule.


def warmed_up_twice_as_long() -> None:
    """The warm-up counts micro-batches, and takes twice as long."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule.replace(warmup_steps=6), step, steps))


def steps_of_an_epoch_too_few() -> None:
    """The schedule ends at two thirds of the steps."""
    _factor(
        lambda factor: lambda schedule, step, steps: factor(schedule, min(step, steps * 2 // 3 - 1), steps * 2 // 3)
    )


def rate_scaled_by_processes() -> None:
    """The rate is multiplied by the number of devices."""
    _factor(lambda factor: lambda schedule, step, steps: 2 * factor(schedule, step, steps))


def rate_of_another_group_from_step_five() -> None:
    """From the sixth step on a callback lowers the rate by a tenth."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, step, steps) * (0.9 if step >= 5 else 1.0))


# Evaluation.


def _evaluated(change: Callable[[Any, Any], Any]) -> None:
    def wrap(evaluate: Any) -> Any:
        return lambda *args, **kwargs: change(evaluate, (args, kwargs))

    replace_everywhere("evaluate", wrap, among=("probe", "experiment"))


def evaluated_with_a_stale_head() -> None:
    """The evaluation uses a copy of the head, made before the last updates."""

    def change(evaluate: Any, given: Any) -> Any:
        (model, *rest), kwargs = given
        kept = model.classifier.weight.detach().clone()
        with torch.no_grad():
            model.classifier.weight.mul_(0.99)
        try:
            return evaluate(model, *rest, **kwargs)
        finally:
            with torch.no_grad():
                model.classifier.weight.copy_(kept)

    _evaluated(change)


def evaluated_in_fp64() -> None:
    """The evaluation runs in double precision."""

    def change(evaluate: Any, given: Any) -> Any:
        (model, *rest), kwargs = given
        model.double()
        try:
            return evaluate(model, *rest, **kwargs)
        finally:
            model.float()

    _evaluated(change)


# What does not agree with itself.


def rows_by_hash() -> None:
    """Rows within a batch come in the order of a salted hash."""
    import os

    salt = int.from_bytes(os.urandom(4), "little")
    _positions(lambda positions: sorted(positions, key=lambda place: (place * 2654435761 + salt) % 4294967296 ^ salt))


def gradients_raced() -> None:
    """Gradients are added up in an order that nobody fixed: the last bits differ."""
    import os

    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))

    def change(found: list[Any], _: int) -> None:
        for value in found:
            value.grad.mul_(1 + 1e-6 * (torch.rand(1, generator=generator) - 0.5))

    _before_clipping(change)


# Controls.


def another_release_of_numpy() -> None:
    """Another release of numpy that computes the same."""
    from plumbline.train import fingerprint

    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"numpy": "2.9.9"})


def gradients_scaled_and_unscaled() -> None:
    """Gradients are multiplied by a power of two and divided by it."""
    _before_clipping(lambda found, _: [value.grad.mul_(1024).div_(1024) for value in found])


def batches_copied() -> None:
    """Each batch is copied before it is used."""
    _fetched(lambda batch: batch.update({name: array.copy() for name, array in batch.items()}))
