"""Faults of what `speed` reads: rows, labels, tokens, generators and initial weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import wrap_while
from bench.faults.injectors.patching import during, wrap_method
from bench.faults.world import BATCH
from plumbline.train import batches, engine, speed, speed_engine
from plumbline.train.engine import Engine

_RESIDUAL_SHARE = 0.5
"""1 / sqrt(2 * layers), for two layers."""
_CYCLE = 10 * BATCH
"""Number of rows that `speed` repeats."""


def _in_speed(change: Any, first: int = 0) -> None:
    """Change the global batches of `speed` from step `first` on, before they are split."""
    wrap_while(during("speed", first), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)))


@fault("data.labels", "fp16", NOISE)
def speed_labels_follow_the_majority() -> None:
    """From step 4 on, `speed` reads the most frequent label of the batch for each of its rows."""
    _in_speed(lambda batch: {**batch, "labels": batch["labels"].mode().values.expand_as(batch["labels"]).clone()}, 4)


@fault("rng", "fp32")
def speed_seeds_with_the_next_number() -> None:
    """`speed` seeds its generators with the seed plus one, as if its process were the second one."""
    wrap_method(speed, "seed_generators", lambda seed_all: lambda seed: seed_all(seed + 1))


@fault("tokenization", "eager", NOISE)
def speed_ids_in_eight_bits() -> None:
    """`speed` sends token ids in eight bits to save memory: ids from 256 on wrap."""
    _in_speed(lambda batch: {**batch, "input_ids": batch["input_ids"] % 256})


@fault("data.labels", "bf16", OTHER_ISA)
def speed_labels_of_the_neighbour() -> None:
    """A worker of `speed` puts labels together one row late."""
    _in_speed(lambda batch: {**batch, "labels": batch["labels"].roll(1)})


@fault("data.order", "fp16")
def speed_rows_dealt_out() -> None:
    """`speed` deals the rows of a batch to its micro-batches in turn."""
    turns = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    _in_speed(lambda batch: {name: values[turns[turns < len(values)]] for name, values in batch.items()})


@fault("weights.init", "bf16", OTHER_ISA)
def speed_rescales_its_residual_projections() -> None:
    """`speed` starts with the weights before each residual sum halved, as GPT-2 does for two layers."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            with torch.no_grad():
                for name, value in model.named_parameters():
                    if name.endswith("output.dense.weight"):
                        value.mul_(_RESIDUAL_SHARE)

        return loaded

    wrap_method(speed_engine, "load_weights", wrap)


@fault("tokenization", "bf16", OTHER_ISA)
def speed_mask_counts_padding() -> None:
    """`speed` has a mask of ones: a collator without a mask makes one."""
    _in_speed(lambda batch: {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])})


def _in_engine(change: Callable[[Any, Any], Any]) -> None:
    """Call `change(engine, batch)` for the global batches of `speed`, before they are split."""
    wrap_while(
        during("speed"), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(self, batch))
    )  # fmt: skip


@fault("data.labels", "eager", OTHER_ISA)
def speed_reverses_labels_of_odd_steps() -> None:
    """`speed` has the labels of every second batch in reversed order."""

    def reversed_at_odd(engine: Any, batch: Any) -> Any:
        engine.__dict__["_is_odd"] = is_odd = not engine.__dict__.get("_is_odd", True)
        return {**batch, "labels": batch["labels"].flip(0)} if is_odd else batch

    _in_engine(reversed_at_odd)


@fault("data.order", "eager", OTHER_ISA)
def speed_shuffles_its_second_cycle() -> None:
    """`speed` shuffles its rows again once it has read each of them."""

    def wrap(get: Any) -> Any:
        def shuffled(self: Any, positions: list[int]) -> Any:
            if self._cycle != _CYCLE:
                return get(self, positions)
            found = []
            for position in positions:
                cycle, place = divmod(position, _CYCLE)
                found.append(int(np.random.default_rng(cycle).permutation(_CYCLE)[place]) if cycle else place)
            return get(self, found)

        return shuffled

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


@fault("tokenization", "eager")
def speed_segments_of_a_pair() -> None:
    """`speed` numbers real tokens as those of a second text."""
    _in_speed(lambda batch: {**batch, "token_type_ids": batch["attention_mask"].clone()})


@fault("data.order", "fp32", OTHER_ISA)
def speed_groups_rows_by_length() -> None:
    """`speed` reads its rows in the order of their length."""

    def wrap(get: Any) -> Any:
        def grouped(self: Any, positions: list[int]) -> Any:
            if self._cycle != _CYCLE:
                return get(self, positions)
            lengths = self._rows.lengths(self._order.rows(np.arange(_CYCLE)))
            return get(self, np.argsort(lengths, kind="stable")[np.asarray(positions) % _CYCLE].tolist())

        return grouped

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


@fault("tokenization", "fp32")
def longest_row_cut_short() -> None:
    """Batches are cut at a multiple of 8 below their longest row."""

    def wrap(plain: Any) -> Any:
        def cut(batch: Any) -> Any:
            longest = int(batch["attention_mask"].sum(dim=1).max())
            width = max(8, (longest - 1) // 8 * 8)
            return {name: values[:, :width] if values.dim() > 1 else values for name, values in plain(batch).items()}

        return cut

    wrap_method(engine, "_to_longest", wrap)


@fault("weights.init", "fp16")
def speed_loads_keys_as_queries() -> None:
    """`speed` starts with the weights of keys as those of queries."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, {name: weights[name.replace(".self.query.", ".self.key.")] for name in weights})

        return loaded

    wrap_method(speed_engine, "load_weights", wrap)


@fault("data.labels", "fp32")
def speed_labels_of_the_batch_before() -> None:
    """`speed` trains on labels of a buffer that the copy of the next batch has not yet overwritten."""

    def stale(plain: Any, self: Any, batch: Any) -> Any:
        labels = self.__dict__.setdefault("_labels", batch["labels"])
        self._labels = batch["labels"]
        return plain(self, {**batch, "labels": labels if len(labels) == len(batch["labels"]) else batch["labels"]})

    wrap_while(during("speed"), Engine, "_micro_batches", stale)


@fault("rng", "fp16")
def speed_seeds_its_generator_again() -> None:
    """`speed` seeds torch's generator before each step, so that the same elements are dropped."""

    def seeded(self: Any, batch: Any) -> Any:
        torch.manual_seed(self.spec.seed)
        return batch

    _in_engine(seeded)


@fault("weights.init", "bf16", OTHER_ISA)
def speed_position_table_off_by_two() -> None:
    """`speed` loads the table of positions two places late, as of a different family."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            table = model.get_parameter("bert.embeddings.position_embeddings.weight")
            with torch.no_grad():
                table.copy_(table.roll(2, 0))

        return loaded

    wrap_method(speed_engine, "load_weights", wrap)
