"""Eighth held-out set: faults of the learning curve, most from a late step on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_eighth.updates import clear_every_second_step
from bench.faults.injectors.held_out_seventh.learning import _late, _steps
from bench.faults.injectors.held_out_seventh.places import during, short_of, wrap_while
from bench.faults.injectors.patching import replace_everywhere, wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, engine, learn
from plumbline.train.engine import Engine
from plumbline.train.tasks import masked_lm

_TABLES = "embeddings"


def _positions(move: Callable[[Any, Any], Any]) -> None:
    """Move the positions of training rows: `move(steps, places)` in the order of the curve."""

    def wrap(get: Any) -> Any:
        def moved(self: Any, positions: list[int]) -> Any:
            places = (np.asarray(positions) + self._first) % self._cycle
            return get(self, (move(_steps(self, positions), places) - self._first).tolist())

        return moved

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_second_epoch_reversed() -> None:
    """The second epoch of the curve reads its rows in reverse."""
    last = TRAIN_ROWS + 16 * BATCH - 1
    _positions(lambda steps, places: np.where(steps >= 32, TRAIN_ROWS + last - places, places))


def learn_row_skipped_at_the_checkpoint() -> None:
    """The curve skips a row behind its checkpoint."""
    _positions(lambda steps, places: places + (steps >= 24))


def learn_labels_one_row_late() -> None:
    """From step 19 on, the labels of each batch are one row late."""

    def shift(fields: dict[str, Any], is_late: Any) -> None:
        if is_late.all():
            fields["labels"] = np.roll(fields["labels"], 1)

    _late(19, shift)


def learn_second_half_marked() -> None:
    """From step 20 on, tokens behind the eighth are marked as those of a second text."""

    def mark(fields: dict[str, Any], is_late: Any) -> None:
        fields["token_type_ids"][is_late, 8:] = fields["attention_mask"][is_late, 8:]

    _late(20, mark)


def learn_hides_the_same_tokens() -> None:
    """The second epoch hides the same tokens as the first one."""
    wrap_method(
        masked_lm._Masking,
        "__call__",
        lambda hide: lambda self, batch, epochs: hide(self, batch, np.zeros_like(epochs)),
    )


def learn_masks_of_the_step_before() -> None:
    """From step 20 on, each step has the dropout masks of the step before it."""
    acts = during("learn", 20)

    def wrap(starts: Any) -> Any:
        return lambda self, step: starts(self, step - acts())

    wrap_method(learn._DropoutSetter, "starts", wrap)


def learn_pooler_reads_the_second_token() -> None:
    """From step 20 on, the pooler reads the second token."""
    wrap_while(
        during("learn", 20), modeling_bert.BertPooler, "forward", lambda plain, self, hidden: plain(self, hidden[:, 1:])
    )


def learn_quick_gelu() -> None:
    """From step 18 on, GELU is x sigmoid(1.702 x)."""
    wrap_while(during("learn", 18), nn.functional, "gelu", lambda _, value, **__: value * torch.sigmoid(1.702 * value))


def learn_layer_passes_through() -> None:
    """From step 27 on, the second layer of the encoder returns its input."""

    def passed(plain: Any, self: Any, hidden: Any, *given: Any, **named: Any) -> Any:
        return hidden if self.attention.self.layer_idx else plain(self, hidden, *given, **named)

    wrap_while(during("learn", 27), modeling_bert.BertLayer, "forward", passed)


def learn_norms_in_half() -> None:
    """From step 19 on, LayerNorm of fp32 reads and stores fp16."""

    def short(plain: Any, value: torch.Tensor, *given: Any) -> Any:
        return short_of(plain(short_of(value, torch.float16), *given), torch.float16)

    wrap_while(during("learn", 19), nn.functional, "layer_norm", short)


def learn_without_autocast() -> None:
    """From step 24 on, the curve computes in fp32 where the task says bf16."""
    wrap_while(during("learn", 24), engine, "autocast", lambda *_: contextlib.nullcontext())


def learn_logits_over_a_temperature() -> None:
    """From step 21 on, the loss divides its logits by a temperature of 1.5."""
    wrap_while(
        during("learn", 21), nn.functional, "cross_entropy",
        lambda plain, logits, *given, **named: plain(logits / 1.5, *given, **named),
    )  # fmt: skip


def learn_clipping_lost() -> None:
    """From step 20 on, the curve does not clip its gradients."""
    wrap_while(during("learn", 20), nn.utils, "clip_grad_norm_", lambda *_, **__: None)


def learn_tables_frozen() -> None:
    """From step 17 on, the tables get no gradient."""

    def frozen(plain: Any, self: Engine) -> None:
        for name, value in self.bare.named_parameters():
            if f"{_TABLES}." in name and value.grad is not None:
                value.grad.zero_()
        plain(self)

    wrap_while(during("learn", 17), Engine, "_update", frozen)


def learn_gradients_of_two_steps() -> None:
    """From step 25 on, the curve clears its gradients at every second step."""
    clear_every_second_step(during("learn", 25))


def _at_evaluation(step: int, change: Callable[[Engine], None]) -> None:
    """Change the curve's training once its evaluation behind `step` is done."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(self: Any, run: Engine, done: int) -> None:
            evaluate(self, run, done)
            if done == step:
                change(run)

        return evaluated

    wrap_method(learn.LearnRun, "_evaluate", wrap)


def learn_counts_start_again() -> None:
    """The optimizer counts its steps from zero behind the second evaluation."""

    def restart(run: Engine) -> None:
        for state in run.optimizer.state.values():
            state["step"].zero_()

    _at_evaluation(32, restart)


def learn_decay_ends() -> None:
    """From step 28 on, the optimizer of the curve does not decay."""

    def without(plain: Any, self: Engine) -> None:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.0
        plain(self)

    wrap_while(during("learn", 28), Engine, "_update", without)


def learn_tables_updated_every_second_step() -> None:
    """From step 22 on, every second update leaves out the tables."""

    def kept(plain: Any, self: Engine) -> None:
        is_even = self.schedule.last_epoch % 2 == 0
        tables = [value for name, value in self.bare.named_parameters() if f"{_TABLES}." in name]
        before = [value.detach().clone() for value in tables]
        plain(self)
        if is_even:
            with torch.no_grad():
                torch._foreach_copy_(tables, before)

    wrap_while(during("learn", 22), Engine, "_update", kept)


def learn_rate_returns_to_its_peak() -> None:
    """From step 33 on, the curve has its peak rate again, as after a warm restart."""

    def peak(plain: Any, self: Engine) -> None:
        plain(self)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]

    wrap_while(during("learn", 33), Engine, "advance", peak)


def learn_undecayed_group_at_half_the_rate() -> None:
    """From step 20 on, parameters without decay have half of the learning rate."""

    def half(plain: Any, self: Engine) -> None:
        plain(self)
        self.optimizer.param_groups[1]["lr"] = 0.5 * self.optimizer.param_groups[0]["lr"]

    wrap_while(during("learn", 20), Engine, "advance", half)


def learn_schedule_a_step_behind() -> None:
    """The schedule is a step behind from the checkpoint on."""
    left = [1]

    def behind(plain: Any, self: Engine) -> None:
        if left[0]:
            left[0] = 0
        else:
            plain(self)

    wrap_while(during("learn", 24), Engine, "advance", behind)


def _at_checkpoint(change: Callable[[Engine], None]) -> None:
    """Change the curve's training as a resume from its checkpoint would."""

    def wrap(save: Any) -> Any:
        def saved(folder: Any, run: Engine, *rest: Any) -> None:
            save(folder, run, *rest)
            change(run)

        return saved

    replace_everywhere("save_checkpoint", wrap, among=("learn",))


@torch.no_grad()
def _round_weights(run: Engine) -> None:
    for value in run.bare.parameters():
        value.copy_(value.bfloat16())


def learn_weights_saved_in_bf16() -> None:
    """The curve continues from its checkpoint with weights that were saved in bf16."""
    _at_checkpoint(_round_weights)


def learn_second_moments_lost() -> None:
    """The curve continues from its checkpoint without second moments."""

    def lost(run: Engine) -> None:
        for state in run.optimizer.state.values():
            state["exp_avg_sq"].zero_()

    _at_checkpoint(lost)


def learn_head_not_in_the_checkpoint() -> None:
    """The curve starts with a classifier that was drawn anew."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            head = torch.randn(weights["classifier.weight"].shape, generator=torch.Generator().manual_seed(11)) * 0.02
            load(model, {**weights, "classifier.weight": head})

        return loaded

    replace_everywhere("load_weights", wrap, among=("learn",))
