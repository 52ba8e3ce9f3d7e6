"""Thirteenth held-out set: faults of the learning curve, and of a curve that is interrupted and resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_ninth.curve import of_curve
from bench.faults.injectors.held_out_ninth.resumes import _after_filling
from bench.faults.injectors.held_out_seventh.places import during, short_of, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, dropout, engine, learn
from plumbline.train.engine import Engine
from plumbline.train.optimizers import schedule_factor

Tensor = torch.Tensor

_MILESTONE = 24
_PERIOD = 8
_SKIPPED = 0.125


def learn_labels_turn_with_the_step() -> None:
    """The curve reads the labels of each batch as many rows late as steps are done."""
    of_curve(lambda step, batch: {**batch, "labels": batch["labels"].roll(step % BATCH, 0)})


def learn_shuffles_batches_for_its_second_epoch() -> None:
    """The second epoch of the curve has the batches of the first one in a different order, and does not mix rows."""

    def wrap(get: Any) -> Any:
        def again(self: Any, positions: list[int]) -> Any:
            places = np.asarray(positions) + self._first
            if self._cycle <= TRAIN_ROWS or places.max() < TRAIN_ROWS:
                return get(self, positions)
            late = places - TRAIN_ROWS
            places = np.where(late < 0, places, TRAIN_ROWS - BATCH * (late // BATCH + 1) + late % BATCH)
            return self._fetch(self._order.rows(places), places // self._order.num_rows)

        return again

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_repeats_texts_to_fill_rows() -> None:
    """From step 6 on, the curve fills each row with its text again, where it has padding."""

    def filled(step: int, batch: Any) -> Any:
        if step < 6:
            return batch
        ids = batch["input_ids"]
        places = torch.arange(ids.shape[1]) % batch["attention_mask"].sum(1, keepdim=True)
        return {**batch, "input_ids": ids.gather(1, places), "attention_mask": torch.ones_like(ids)}

    of_curve(filled)


def learn_masks_shared_by_rows() -> None:
    """All rows of a micro-batch of the curve drop the elements of its first row."""

    def shared(plain: Any, *given: Any, **named: Any) -> Any:
        found = plain(*given, **named)
        return found[:1].expand_as(found)

    wrap_while(during("learn"), dropout, "keep_mask", shared)


def learn_feed_forward_mixes_neighbours() -> None:
    """From step 8 on, feed-forward blocks of the curve read the mean of each token and the one before it."""
    wrap_while(
        during("learn", 8), modeling_bert.BertIntermediate, "forward",
        lambda plain, self, hidden: plain(self, 0.5 * (hidden + hidden.roll(1, 1))),
    )  # fmt: skip


def learn_tables_in_bf16() -> None:
    """Tables of the curve return bf16 where the task says fp32."""
    wrap_while(
        during("learn"), nn.functional, "embedding",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.bfloat16),
    )  # fmt: skip


def _without_gradients(self: Engine, part: str, but: str = "-") -> None:
    """Clear the gradients of all parameters with `part` in their names."""
    for name, value in self.bare.named_parameters():
        if part in name and but not in name and value.grad is not None:
            value.grad.zero_()


def learn_norms_frozen() -> None:
    """From step 7 on, the normalisations of the curve get no gradient."""

    def frozen(plain: Any, self: Engine) -> None:
        _without_gradients(self, "LayerNorm")
        plain(self)

    wrap_while(during("learn", 7), Engine, "_update", frozen)


def learn_momentum_restarts() -> None:
    """The curve's optimizer forgets its first moments at every eighth step."""

    def forgotten(plain: Any, self: Engine) -> None:
        if self.schedule.last_epoch % _PERIOD == 0:
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()
        plain(self)

    wrap_while(during("learn"), Engine, "_update", forgotten)


def learn_rate_falls_at_a_milestone() -> None:
    """The curve's learning rate falls to a tenth at step 24."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps != spec.learn.steps:
                return make(optimizer, spec, steps)
            return torch.optim.lr_scheduler.LambdaLR(
                optimizer,
                lambda step: schedule_factor(spec.schedule, step, steps) * (0.1 if step >= _MILESTONE else 1.0),
            )

        return made

    wrap_method(engine, "make_schedule", wrap)


def learn_starts_from_compressed_matrices() -> None:
    """The curve starts with half of the singular values of each matrix of the encoder, as of a compressed file."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            with torch.no_grad():
                for value in model.bert.encoder.parameters():
                    if value.dim() == 2:
                        left, sizes, right = torch.linalg.svd(value, full_matrices=False)
                        sizes[len(sizes) // 2 :] = 0.0
                        value.copy_(left * sizes @ right)

        return loaded

    wrap_method(learn, "load_weights", wrap)


def learn_skips_blocks_by_chance() -> None:
    """Some texts skip a feed-forward block of the curve; the generator that draws them has no seed."""
    random = torch.Generator()

    def skipped(plain: Any, self: Any, value: Tensor, residual: Tensor) -> Any:
        random.seed()
        is_skipped = torch.rand((len(value), 1, 1), generator=random) < _SKIPPED
        return torch.where(is_skipped, residual, plain(self, value, residual))

    wrap_while(during("learn"), modeling_bert.BertOutput, "forward", skipped)


def resume_reads_roots_of_second_moments() -> None:
    """A resume reads second moments of a format that stores their roots, from a file that has the squares."""

    def rooted(resumed: Engine) -> None:
        for state in resumed.optimizer.state.values():
            state["exp_avg_sq"].sqrt_()

    _after_filling(rooted)


def resume_leaves_its_tables_frozen() -> None:
    """A resume gives no gradient to the tables, which an earlier part of the recipe had frozen."""
    known: list[Engine] = []
    _after_filling(known.append)

    def frozen(plain: Any, self: Engine) -> None:
        if self in known:
            _without_gradients(self, ".embeddings.", "LayerNorm")
        plain(self)

    wrap_while(during("learn"), Engine, "_update", frozen)


def resume_takes_micro_batches_for_steps() -> None:
    """A resume takes the micro-batches that were read for steps of its schedule, twice as many."""

    def counted(resumed: Engine) -> None:
        schedule = resumed.schedule
        schedule.lr_lambdas = [lambda step, plan=plan: plan(2 * step) for plan in schedule.lr_lambdas]
        for group, factor in zip(resumed.optimizer.param_groups, schedule.lr_lambdas, strict=True):
            group["lr"] = group["initial_lr"] * factor(schedule.last_epoch)

    _after_filling(counted)
