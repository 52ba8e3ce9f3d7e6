"""Faults of the learning curve alone: probe and `speed` agree with the reference."""

import contextlib
import os
import random
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn import functional

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import after_build, of_curve, short_of
from bench.faults.injectors.patching import by, during, nothing, of_output, patch, replaces, with_keys
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, engine, learn
from plumbline.train.engine import Engine
from plumbline.train.models import dropout

_CURVE = during("learn")
_PRUNED = 0.1
_PERIOD = 8
_SEPARATOR = 3
_TRIANGLE = 16


@fault("data.labels", "bf16", OTHER_ISA)
@by(of_curve)
def learn_labels_turn_with_the_step(step, batch):
    """The curve reads the labels of each batch as many rows late as steps are done."""
    return {**batch, "labels": batch["labels"].roll(step % BATCH, 0)}


@fault("rng", "fp16", OTHER_ISA)
def learn_masks_of_rows_in_reverse():
    """From step 5 on, each row of the curve drops the elements of the row opposite in its micro-batch."""
    patch(dropout, "keep_mask", of_output(lambda mask: mask.flip(0)), during("learn", 5))


@fault("precision", "eager", OTHER_ISA)
def learn_without_autocast():
    """From step 24 on, the curve computes in fp32 where the task says bf16."""
    patch(engine, "autocast", lambda *_: contextlib.nullcontext(), during("learn", 24))


@fault("data.order", "fp32", OTHER_ISA)
@replaces(batches.TrainingRows, "__getitems__")
def learn_second_epoch_reversed(plain, self, positions):
    """The second epoch of the curve reads its rows in reverse."""
    # Probe and `speed` repeat the first ten steps.
    places = (np.asarray(positions) + self._first) % self._cycle
    last = TRAIN_ROWS + 16 * BATCH - 1
    moved = np.where(places // BATCH >= 32, TRAIN_ROWS + last - places, places)
    return plain(self, (moved - self._first).tolist())


@fault("gradient", "learn")
def learn_micro_batches_summed():
    """The learning curve adds up the gradients of micro-batches instead of averaging them."""
    patch(Engine, "_backward", lambda plain, self, loss, _: plain(self, loss, 1.0), _CURVE)


@fault("loss", "eager", OTHER_ISA)
def learn_loss_is_a_sum():
    """The curve's loss is the sum over the rows of a micro-batch."""
    patch(functional, "cross_entropy", with_keys(reduction="sum"), _CURVE)


@fault("optimizer", "packed", NOISE)
@replaces(Engine, "_update", _CURVE)
def learn_eps_of_a_thousandth(plain, self):
    """The curve's optimizer updates with an eps of 0.001."""
    for group in self.optimizer.param_groups:
        group["eps"] = 1e-3
    plain(self)


@fault("rng", "learn")
def learn_micro_batches_share_masks():
    """All micro-batches use the dropout masks of the first."""
    patch(dropout.DropoutClock, "feeds", lambda plain, self, _: plain(self, 0))


@fault("weights.init", "eager", OTHER_ISA)
@by(after_build, learn)
def learn_starts_pruned(model):
    """The curve starts with the smallest tenth of each matrix's weights at zero."""
    for value in model.parameters():
        if value.dim() > 1:
            value.masked_fill_(value.abs() < value.abs().quantile(_PRUNED), 0.0)


@fault("optimizer", "packed", NOISE)
@replaces(Engine, "_update", _CURVE)
def learn_momentum_restarts(plain, self):
    """The curve's optimizer forgets its first moments at every eighth step."""
    for state in self.optimizer.state.values() if self.schedule.last_epoch % _PERIOD == 0 else ():
        state["exp_avg"].zero_()
    plain(self)


@fault("tokenization", "eager", OTHER_ISA)
@by(of_curve)
def learn_repeats_texts_to_fill_rows(step, batch):
    """From step 6 on, the curve fills each row with its text again, where it has padding."""
    ids = batch["input_ids"]
    places = torch.arange(ids.shape[1]) % batch["attention_mask"].sum(1, keepdim=True)
    return {**batch, "input_ids": ids.gather(1, places), "attention_mask": torch.ones_like(ids)} if step >= 6 else batch


@fault("operator", "learn")
def learn_attention_not_scaled():
    """The attention of the learning curve does not scale its scores."""
    patch(dropout, "_attention", with_keys(scaling=1.0))


class _Unmasked(torch.autograd.Function):
    """Autograd function: dropout whose backward pass has no mask."""

    @staticmethod
    def forward(context, values, mask, scale):
        context.scale = scale
        return values * mask * scale

    @staticmethod
    def backward(context, *gradients):
        return gradients[0] * context.scale, None, None


@fault("gradient", "bf16", OTHER_ISA)
def learn_dropout_gradient_without_its_mask():
    """Dropout's backward pass lets the gradients of dropped elements through."""
    plain = dropout._Masked
    dropout._Masked = SimpleNamespace(apply=lambda *given: (_Unmasked if _CURVE() else plain).apply(*given))


@fault("operator", "fp32", OTHER_ISA)
def learn_quick_gelu():
    """From step 18 on, GELU is x sigmoid(1.702 x)."""
    patch(functional, "gelu", lambda _, value, **__: value * torch.sigmoid(1.702 * value), during("learn", 18))


@fault("operator", "fp32", OTHER_ISA)
def learn_norm_eps_of_a_default():
    """From step 18 on, the curve's LayerNorm has torch's default eps."""
    patch(functional, "layer_norm", lambda plain, *given: plain(*given[:4], 1e-5), during("learn", 18))


@fault("precision", "fp32", OTHER_ISA)
def learn_tables_in_bf16():
    """Tables of the curve return bf16 where the task says fp32."""
    patch(functional, "embedding", of_output(lambda rows: short_of(rows, torch.bfloat16)), _CURVE)


@fault("data.labels", "bf16", OTHER_ISA)
@by(of_curve)
def learn_first_labels_are_zero(_step, batch):
    """The first label of each micro-batch of the curve is never written: it is zero."""
    labels = batch["labels"].clone()
    labels[:: BATCH // 2] = 0
    return {**batch, "labels": labels}


@fault("nondeterminism", "learn")
@replaces(batches._Encoded, "_fetch")
def learn_rows_raced_in_the_second_epoch(plain, self, rows, epochs):
    """A prefetcher without a lock gives two rows of each batch each other's tokens from the second epoch on."""
    batch = plain(self, rows, epochs)
    if (epochs > 0).any():
        ids = batch["input_ids"]
        place = int.from_bytes(os.urandom(2), "little") % len(ids)
        ids[[place, place - 1]] = ids[[place - 1, place]]
    return batch


@fault("schedule", "packed")
def learn_rate_held():
    """From step 30 on, the curve's learning rate stays as it is."""
    patch(Engine, "advance", nothing, during("learn", 30))


@fault("loss", "fp16")
def learn_loss_smoothed_late():
    """From step 25 on, the curve smooths its labels by 0.05."""
    patch(functional, "cross_entropy", with_keys(label_smoothing=0.05), during("learn", 25))


@fault("nondeterminism", "eager")
@replaces(Engine, "_update", _CURVE)
def learn_gradients_added_twice_by_chance(plain, self):
    """In each step of the curve some tensors, different ones in each run, have their gradient added twice."""
    for value in self.bare.parameters():
        if value.requires_grad and value.grad is not None and random.SystemRandom().random() < 0.125:
            value.grad.mul_(2.0)
    plain(self)


@fault("tokenization", "fp32")
@by(of_curve)
def learn_separators_behind_the_padding(_step, batch):
    """The curve pads its texts before it adds their last special token, which is then at the end of each row."""
    ids, mask = batch["input_ids"].clone(), batch["attention_mask"].clone()
    rows, last = torch.arange(len(ids)), mask.sum(1) - 1
    ids[rows, last], mask[rows, last] = 0, 0
    ids[:, -1], mask[:, -1] = _SEPARATOR, 1
    return {**batch, "input_ids": ids, "attention_mask": mask}


@fault("evaluation", "learn")
@replaces(learn, "evaluate")
def learn_evaluated_with_dropout(plain, model, *given, **named):
    """The learning curve's evaluations do not switch dropout off."""
    switch, model.eval = model.eval, lambda: model
    try:
        return plain(model, *given, **named)
    finally:
        model.eval = switch


@fault("schedule", "bf16", OTHER_ISA)
@replaces(engine, "make_schedule")
def learn_rate_in_triangles(plain, optimizer, spec, steps):
    """The curve's learning rate rises and falls with a period of 16 steps."""
    if steps != spec.learn.steps:
        return plain(optimizer, spec, steps)
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.1 + 0.9 * (1.0 - abs(step % _TRIANGLE * 2 / _TRIANGLE - 1.0))
    )
