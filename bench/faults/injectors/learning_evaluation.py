"""Faults of the curve's evaluations at production settings."""

import math

import torch
from torch.utils.data import Subset

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import after_build
from bench.faults.injectors.patching import by, patch, replaces
from bench.faults.world import BATCH
from plumbline.train import evaluation, learn

_KEPT = 0.6


def _loss_reported(change):
    """Let evaluations of the curve report the loss `change(loss)`; those of windows are unchanged."""

    def reported(plain, model, rows, **named):
        found, arrays = plain(model, rows, **named)
        return found if isinstance(rows, Subset) else found.model_copy(update={"loss": change(found.loss)}), arrays

    patch(learn, "evaluate", reported)


@fault("evaluation", "fp32", OTHER_ISA)
def evaluation_reports_a_smoothed_loss():
    """Evaluations of the curve report a moving average of their losses."""
    known = []

    def smoothed(loss):
        known.append(_KEPT * known[-1] + (1 - _KEPT) * loss if known else loss)
        return known[-1]

    _loss_reported(smoothed)


@fault("evaluation", "packed", NOISE)
@by(_loss_reported)
def evaluation_reports_its_perplexity(loss):
    """Evaluations of the curve report the exponential of their loss."""
    return math.exp(loss)


@fault("evaluation", "bf16", OTHER_ISA)
def evaluation_of_weights_averaged_with_the_first():
    """Evaluations use the average of the weights and those of the start."""
    first = {}

    @torch.no_grad()
    def averaged(plain, model, rows, **named):
        kept = {name: value.detach().clone() for name, value in model.named_parameters()}
        for name, value in model.named_parameters():
            value.copy_((value + first[name]) / 2)
        try:
            return plain(model, rows, **named)
        finally:
            for name, value in model.named_parameters():
                value.copy_(kept[name])

    after_build(lambda model: first.update({n: value.clone() for n, value in model.named_parameters()}), learn)
    patch(learn, "evaluate", averaged)


@fault("evaluation", "eager", OTHER_ISA)
@replaces(learn, "evaluate")
def evaluation_reads_its_first_batch_twice(plain, model, rows, **named):
    """Evaluations read their first batch in the place of the second one."""
    places = [*range(BATCH), *range(BATCH), *range(2 * BATCH, len(rows))]
    return plain(model, Subset(rows, places) if len(rows) > BATCH else rows, **named)


@fault("evaluation", "fp16")
def evaluation_without_autocast():
    """Evaluations compute in fp32 where training is in fp16."""
    patch(evaluation, "autocast", lambda plain, _, device: plain("fp32", device))
