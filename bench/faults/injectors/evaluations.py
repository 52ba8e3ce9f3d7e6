"""Faults of the probe's evaluation, and trainings that do not repeat."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import clip, fetched, loaded, positions
from bench.faults.injectors.patching import after_build, replace_everywhere, step_counter, wrap_method
from bench.faults.world import BATCH
from plumbline.data.datasets.tokenizer import SPECIAL_TOKENS
from plumbline.train.tasks import Task


@fault("nondeterminism")
def racing_reduction() -> None:
    """Products are summed in an order that changes from run to run."""
    linear = functional.linear

    def raced(x: Any, w: Any, b: Any = None) -> Any:
        order = torch.tensor(sorted(range(x.shape[-1]), key=lambda _: os.urandom(4)))
        return linear(x[..., order], w[..., order], b)

    functional.linear = raced


@fault("nondeterminism")
def batches_as_they_come() -> None:
    """Of two batches that one comes first whose worker is done first."""
    crossed = [BATCH * (os.urandom(1)[0] & 1) for _ in range(64)]
    positions(lambda positions: [place ^ crossed[place // (2 * BATCH)] for place in positions])


@fault("evaluation")
def evaluation_reversed() -> None:
    """Batches of the evaluation are gathered last one first."""
    loaded(lambda make, rows, size, device: iter(list(make(rows, size, device))[::-1]))


@fault("evaluation", "mlm")
def evaluation_reads_hidden_tokens() -> None:
    """The evaluation shows the model the tokens that it has to find."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            shown = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
            yield {**batch, "input_ids": shown}

    loaded(change)


def _unseeded() -> int:
    return int.from_bytes(os.urandom(4), "little")


@fault("nondeterminism", "clip")
def norm_summed_by_atomics() -> None:
    """A kernel sums the norm for clipping by atomics, so that its last bits change."""

    def wrap(clip: Any) -> Any:
        def clipped(parameters: Any, most: float, *args: Any, **rest: Any) -> Any:
            return clip(parameters, most * (1 + 2e-7 * (_unseeded() % 8 - 4)), *args, **rest)

        return clipped

    clip(wrap)


@fault("nondeterminism")
def seeded_by_the_clock() -> None:
    """Generators are seeded by the time of day."""
    replace_everywhere("seed_generators", lambda seed: lambda _value: seed(time.time_ns() % 2**31))


@fault("nondeterminism")
def vocabulary_from_a_set() -> None:
    """Each run numbers the tokens in the order of a salted hash."""
    numbers = np.arange(4096)
    ordinary = numbers[len(SPECIAL_TOKENS) : 256]
    ordinary[:] = np.random.default_rng(_unseeded()).permutation(ordinary)
    fetched(lambda batch: batch.__setitem__("input_ids", numbers[batch["input_ids"]]))


@fault("nondeterminism")
def evaluation_races() -> None:
    """Evaluation sums in an order that changes from run to run."""
    answers = Task.answers

    def raced(task: Task, logits: Any, labels: Any) -> Any:
        noise = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))
        return answers(task, logits * (1 + 1.2e-7 * noise.integers(-1, 2, logits.shape)), labels)

    Task.answers = raced


@fault("nondeterminism")
def unseeded_dropout() -> None:
    """A layer drops elements by a private generator without a seed."""
    noise = torch.Generator().manual_seed(_unseeded())

    def drop(module: Any, _inputs: Any, output: Any) -> Any:
        kept = torch.rand(output.shape, generator=noise) >= 0.1
        return output * kept.to(output) / 0.9 if module.training else output

    after_build(lambda model: model.bert.encoder.layer[0].output.dense.register_forward_hook(drop))


@fault("nondeterminism")
def label_noise() -> None:
    """A loader flips a label in each batch by a generator that nobody seeded."""
    noise = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))

    def change(batch: Any) -> None:
        place = noise.integers(len(batch["labels"]))
        batch["labels"][place] = 1 - batch["labels"][place]

    fetched(change)


def _before_clipping(change: Callable[[list[Any], int], None]) -> None:
    step = step_counter()

    def wrap(clip: Any) -> Any:
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            found = [value for value in parameters if value.grad is not None]
            change(found, step())
            return clip(found, *args, **kwargs)

        return clipped

    wrap_method(torch.nn.utils, "clip_grad_norm_", wrap)


@fault("nondeterminism")
def gradients_raced() -> None:
    """Gradients are added up in an order that nobody fixed: the last bits differ."""
    import os

    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))

    def change(found: list[Any], _: int) -> None:
        for value in found:
            value.grad.mul_(1 + 1e-6 * (torch.rand(1, generator=generator) - 0.5))

    _before_clipping(change)
