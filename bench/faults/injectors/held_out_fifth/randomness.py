"""Fifth held-out set: faults of random generators, and runs that disagree with themselves."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.faults.injectors.data import _positions
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from plumbline.train import batches, engine
from plumbline.train.numerics import seed_generators
from plumbline.train.tasks import masked_lm

_LEGS = ("probe", "envelope", "portable.leg")


def loader_draws_its_base_seed() -> None:
    """The loader has no generator, and draws its base seed from torch's."""
    wrap_method(
        batches,
        "DataLoader",
        lambda loader: lambda *args, generator=None, **rest: loader(*args, **rest),
    )


def _before_step(change: Any) -> None:
    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            change(self, number)
            return step(self, number, batch)

        return stepped

    wrap_method(engine.Engine, "step", wrap)


def seeded_with_the_step() -> None:
    """Each step seeds the generators with the seed plus the step's number."""
    _before_step(lambda run, number: seed_generators(run.spec.seed + number))


def permutation_drawn_at_step_six() -> None:
    """A callback draws a permutation from torch's generator at the seventh step."""
    _before_step(lambda run, number: torch.randperm(8) if number == 6 else None)


def python_seeded_with_a_string() -> None:
    """Python's generator is seeded with the seed as a string."""

    def wrap(seed: Any) -> Any:
        def seeded(value: int) -> None:
            seed(value)
            random.seed(str(value))

        return seeded

    replace_everywhere("seed_generators", wrap, among=_LEGS)


def numpy_draw_per_row() -> None:
    """An augmentation draws a number from NumPy's generator for each training row."""

    def drawn(positions: list[int]) -> list[int]:
        np.random.random(len(positions))  # noqa: NPY002 - the global generator is the fault
        return positions

    _positions(drawn)


def dropout_of_the_embeddings() -> None:
    """Dropout of the embeddings stays on."""
    after_build(lambda model: setattr(model.bert.embeddings.dropout, "p", 0.1))


def tokens_dropped_from_the_embedding() -> None:
    """A tenth of the token vectors is set to zero while training."""

    def drop(module: Any, _inputs: Any, output: Any) -> Any:
        kept = torch.rand(output.shape[:2]) >= 0.1
        return output * kept.unsqueeze(-1).to(output) if module.training else output

    after_build(lambda model: model.bert.embeddings.word_embeddings.register_forward_hook(drop))


def special_tokens_hidden_too() -> None:
    """Masked language modelling also hides special tokens."""

    def wrap(init: Any) -> Any:
        def made(self: Any, spec: Any, rows: Any) -> None:
            init(self, spec, rows)
            self._special = np.array([], dtype=np.int64)

        return made

    wrap_method(masked_lm._Masking, "__init__", wrap)


def every_row_hides_the_same_places() -> None:
    """The hidden places are drawn once for all rows."""
    wrap_method(
        masked_lm,
        "random_keys",
        lambda keys: lambda count, *parts: keys(count, *(parts[:2] if parts[0] == "mask" else parts)),
    )


# Runs that do not repeat.


def _unseeded() -> int:
    return int.from_bytes(os.urandom(4), "little")


def sum_order_autotuned() -> None:
    """Each run chooses an order of summation for its products."""
    linear, salt = functional.linear, _unseeded()

    def tuned(x: Any, w: Any, b: Any = None) -> Any:
        columns = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(salt))
        return linear(x[..., columns], w[..., columns], b)

    functional.linear = tuned


def unseeded_dropout() -> None:
    """A layer drops elements by a private generator without a seed."""
    noise = torch.Generator().manual_seed(_unseeded())

    def drop(module: Any, _inputs: Any, output: Any) -> Any:
        kept = torch.rand(output.shape, generator=noise) >= 0.1
        return output * kept.to(output) / 0.9 if module.training else output

    after_build(lambda model: model.bert.encoder.layer[0].output.dense.register_forward_hook(drop))


def rows_lost_to_a_timeout() -> None:
    """A timeout replaces a random row of each batch by the row before it."""

    def change(positions: list[int]) -> list[int]:
        late = 1 + _unseeded() % (len(positions) - 1) if len(positions) > 1 else 0
        return [positions[place - 1] if late and place == late else item for place, item in enumerate(positions)]

    _positions(change)
