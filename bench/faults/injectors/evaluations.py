"""Faults of the probe's evaluation, and trainings that do not repeat."""

import os
import time

import numpy as np
import torch
from torch.nn import functional

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import after_build, fetched, positions
from bench.faults.injectors.patching import by, patch, replaces
from bench.faults.world import BATCH
from plumbline.data.datasets.tokenizer import SPECIAL_TOKENS
from plumbline.train import evaluation, probe, speed
from plumbline.train.portable import probe_windows
from plumbline.train.tasks import Task


def _unseeded():
    return int.from_bytes(os.urandom(4), "little")


@fault("nondeterminism")
@replaces(functional, "linear")
def racing_reduction(plain, x, w, b=None):
    """Products are summed in an order that changes from run to run."""
    order = torch.tensor(sorted(range(x.shape[-1]), key=lambda _: os.urandom(4)))
    return plain(x[..., order], w[..., order], b)


@fault("nondeterminism")
def batches_as_they_come():
    """Of two batches that one comes first whose worker is done first."""
    crossed = [BATCH * (os.urandom(1)[0] & 1) for _ in range(64)]
    positions(lambda places: [place ^ crossed[place // (2 * BATCH)] for place in places])


@fault("evaluation")
def evaluation_reversed():
    """Batches of the evaluation are gathered last one first."""
    patch(evaluation, "make_loader", lambda plain, *given: iter(list(plain(*given))[::-1]))


@fault("evaluation", "mlm")
@replaces(evaluation, "make_loader")
def evaluation_reads_hidden_tokens(plain, *given):
    """The evaluation shows the model the tokens that it has to find."""
    for batch in plain(*given):
        yield {**batch, "input_ids": torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])}


@fault("nondeterminism", "clip")
@replaces(torch.nn.utils, "clip_grad_norm_")
def norm_summed_by_atomics(plain, parameters, most, *given, **named):
    """A kernel sums the norm for clipping by atomics, so that its last bits change."""
    return plain(parameters, most * (1 + 2e-7 * (_unseeded() % 8 - 4)), *given, **named)


@fault("nondeterminism")
def seeded_by_the_clock():
    """Generators are seeded by the time of day."""
    for owner in (probe, probe_windows, speed):
        patch(owner, "seed_generators", lambda plain, _: plain(time.time_ns() % 2**31))


@fault("nondeterminism")
def vocabulary_from_a_set():
    """Each run numbers the tokens in the order of a salted hash."""
    numbers = np.arange(4096)
    ordinary = numbers[len(SPECIAL_TOKENS) : 256]
    ordinary[:] = np.random.default_rng(_unseeded()).permutation(ordinary)
    fetched(lambda batch: batch.__setitem__("input_ids", numbers[batch["input_ids"]]))


@fault("nondeterminism")
@replaces(Task, "answers")
def evaluation_races(plain, task, logits, labels):
    """Evaluation sums in an order that changes from run to run."""
    noise = np.random.default_rng(_unseeded()).integers(-1, 2, logits.shape)
    return plain(task, logits * (1 + 1.2e-7 * noise), labels)


@fault("nondeterminism")
def unseeded_dropout():
    """A layer drops elements by a private generator without a seed."""
    noise = torch.Generator().manual_seed(_unseeded())

    def drop(module, _inputs, output):
        kept = torch.rand(output.shape, generator=noise) >= 0.1
        return output * kept.to(output) / 0.9 if module.training else output

    after_build(lambda model: model.bert.encoder.layer[0].output.dense.register_forward_hook(drop))


@fault("nondeterminism")
@by(fetched)
def label_noise(batch):
    """A loader flips a label in each batch by a generator that nobody seeded."""
    place = _unseeded() % len(batch["labels"])
    batch["labels"][place] = 1 - batch["labels"][place]


@fault("nondeterminism")
@replaces(torch.nn.utils, "clip_grad_norm_")
def gradients_raced(plain, parameters, *given, **named):
    """Gradients are added up in an order that nobody fixed: the last bits differ."""
    found = [value for value in parameters if value.grad is not None]
    for value in found:
        value.grad.mul_(1 + 1e-6 * (_unseeded() / 2**32 - 0.5))
    return plain(found, *given, **named)
