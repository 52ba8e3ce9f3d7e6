"""Sixth held-out set: faults of random generators, and runs that disagree with themselves."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.faults.injectors.data import _fetched
from bench.faults.injectors.held_out_fifth.randomness import _before_step
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from bench.faults.injectors.training import _clip
from plumbline.train.tasks import masked_lm

_LEGS = ("probe", "envelope", "portable.leg")


def functional_dropout_left_at_its_default() -> None:
    """A layer calls torch's functional dropout without arguments, which drops half of the elements."""
    after_build(
        lambda model: model.bert.encoder.layer[0].output.dense.register_forward_hook(
            lambda _module, _inputs, output: output * (torch.rand(output.shape) >= 0.5).to(output) * 2
        )
    )


def numpy_seeded_by_a_library() -> None:
    """A plotting library seeds NumPy's generator with 42 after the training did."""

    def wrap(seed: Any) -> Any:
        def seeded(value: int) -> None:
            seed(value)
            np.random.seed(42)  # noqa: NPY002 - the global generator is the fault

        return seeded

    replace_everywhere("seed_generators", wrap, among=_LEGS)


def plugin_seeds_torch_at_step_two() -> None:
    """A plugin that starts late seeds torch's generator with 0 at the third step."""
    _before_step(lambda _run, number: torch.manual_seed(0) if number == 2 else None)


def whole_words_hidden() -> None:
    """A collator hides whole words: the pieces that follow a hidden token are hidden too."""

    def wrap(init: Any) -> Any:
        def made(self: Any, spec: Any, rows: Any) -> None:
            init(self, spec, rows)
            names = map(rows.tokenizer.id_to_token, range(self._num_tokens))
            self._continues = np.array([bool(name) and name.startswith("##") for name in names])

        return made

    def also(hide: Any) -> Any:
        def hidden(self: Any, batch: Any, epochs: Any) -> None:
            whole = batch["input_ids"].copy()
            hide(self, batch, epochs)
            labels, ids = batch["labels"], batch["input_ids"]
            for place in range(1, whole.shape[1]):
                more = self._continues[whole[:, place]] & (labels[:, place - 1] != -100) & (labels[:, place] == -100)
                labels[more, place], ids[more, place] = whole[more, place], self._mask

        return hidden

    wrap_method(masked_lm._Masking, "__init__", wrap)
    wrap_method(masked_lm._Masking, "__call__", also)


# Runs that do not repeat.


def _unseeded() -> int:
    return int.from_bytes(os.urandom(4), "little")


def norm_summed_by_atomics() -> None:
    """A kernel sums the norm for clipping by atomics, so that its last bits change."""

    def wrap(clip: Any) -> Any:
        def clipped(parameters: Any, most: float, *args: Any, **rest: Any) -> Any:
            return clip(parameters, most * (1 + 2e-7 * (_unseeded() % 8 - 4)), *args, **rest)

        return clipped

    _clip(wrap)


def tokens_of_two_rows_raced() -> None:
    """A tokenizer shared by threads without a lock gives one row of a batch the tokens of a different row."""

    def change(batch: Any) -> None:
        ids = batch["input_ids"]
        place = _unseeded() % len(ids)
        ids[place] = ids[(place + 1 + _unseeded() % max(1, len(ids) - 1)) % len(ids)]

    _fetched(change)


def products_reduced_in_arrival_order() -> None:
    """Two halves of each feed-forward product are added with rounding that depends on which arrives first."""
    linear = functional.linear

    def raced(x: Any, w: Any, b: Any = None) -> Any:
        if x.shape[-1] != 64:
            return linear(x, w, b)
        halves = x[..., :32] @ w[:, :32].t(), x[..., 32:] @ w[:, 32:].t()
        if b is None:
            return halves[0] + halves[1]
        return (halves[0] + b) + halves[1] if _unseeded() % 2 else (halves[1] + b) + halves[0]

    functional.linear = raced
