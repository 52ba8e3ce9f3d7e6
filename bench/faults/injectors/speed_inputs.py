"""Faults of what `speed` reads: rows, labels, tokens, generators and initial weights."""

import numpy as np
import torch

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import after_build, split
from bench.faults.injectors.patching import by, during, patch, replaces
from bench.faults.world import BATCH
from plumbline.train import batches, engine, speed, speed_engine
from plumbline.train.engine import Engine

_RESIDUAL_SHARE = 0.5
"""1 / sqrt(2 * layers), for two layers."""
_CYCLE = 10 * BATCH
"""Number of rows that `speed` repeats."""
_SPEED = during("speed")


@fault("data.labels", "fp16", NOISE)
@by(split, during("speed", 4))
def speed_labels_follow_the_majority(batch):
    """From step 4 on, `speed` reads the most frequent label of the batch for each of its rows."""
    return {**batch, "labels": batch["labels"].mode().values.expand_as(batch["labels"]).clone()}


@fault("rng", "fp32")
def speed_seeds_with_the_next_number():
    """`speed` seeds its generators with the seed plus one, as if its process were the second one."""
    patch(speed, "seed_generators", lambda plain, seed: plain(seed + 1))


@fault("tokenization", "eager", NOISE)
def speed_ids_in_eight_bits():
    """`speed` sends token ids in eight bits to save memory: ids from 256 on wrap."""
    split(lambda batch: {**batch, "input_ids": batch["input_ids"] % 256}, _SPEED)


@fault("data.labels", "bf16", OTHER_ISA)
def speed_labels_of_the_neighbour():
    """A worker of `speed` puts labels together one row late."""
    split(lambda batch: {**batch, "labels": batch["labels"].roll(1)}, _SPEED)


@fault("data.order", "fp16")
@by(split, _SPEED)
def speed_rows_dealt_out(batch):
    """`speed` deals the rows of a batch to its micro-batches in turn."""
    turns = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    return {name: values[turns[turns < len(values)]] for name, values in batch.items()}


@fault("weights.init", "bf16", OTHER_ISA)
@by(after_build, speed_engine)
def speed_rescales_its_residual_projections(model):
    """`speed` starts with the weights before each residual sum halved, as GPT-2 does for two layers."""
    for name, value in model.named_parameters():
        if name.endswith("output.dense.weight"):
            value.mul_(_RESIDUAL_SHARE)


@fault("tokenization", "bf16", OTHER_ISA)
def speed_mask_counts_padding():
    """`speed` has a mask of ones: a collator without a mask makes one."""
    split(lambda batch: {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}, _SPEED)


@fault("data.labels", "eager", OTHER_ISA)
@replaces(Engine, "_micro_batches", _SPEED)
def speed_reverses_labels_of_odd_steps(plain, self, batch):
    """`speed` has the labels of every second batch in reversed order."""
    self.__dict__["_is_odd"] = is_odd = not self.__dict__.get("_is_odd", True)
    return plain(self, {**batch, "labels": batch["labels"].flip(0)} if is_odd else batch)


def _cycled(change):
    """Replace the positions of rows that `speed` reads by those of `change(rows, positions)`."""
    patch(
        batches.TrainingRows, "__getitems__",
        lambda plain, self, positions: plain(self, change(self, positions) if self._cycle == _CYCLE else positions),
    )  # fmt: skip


@fault("data.order", "eager", OTHER_ISA)
@by(_cycled)
def speed_shuffles_its_second_cycle(_rows, positions):
    """`speed` shuffles its rows again once it has read each of them."""
    found = []
    for position in positions:
        cycle, place = divmod(position, _CYCLE)
        found.append(int(np.random.default_rng(cycle).permutation(_CYCLE)[place]) if cycle else place)
    return found


@fault("tokenization", "eager")
def speed_segments_of_a_pair():
    """`speed` numbers real tokens as those of a second text."""
    split(lambda batch: {**batch, "token_type_ids": batch["attention_mask"].clone()}, _SPEED)


@fault("data.order", "fp32", OTHER_ISA)
@by(_cycled)
def speed_groups_rows_by_length(rows, positions):
    """`speed` reads its rows in the order of their length."""
    lengths = rows._rows.lengths(rows._order.rows(np.arange(_CYCLE)))
    return np.argsort(lengths, kind="stable")[np.asarray(positions) % _CYCLE].tolist()


@fault("tokenization", "fp32")
@replaces(engine, "_to_longest")
def longest_row_cut_short(plain, batch):
    """Batches are cut at a multiple of 8 below their longest row."""
    longest = int(batch["attention_mask"].sum(dim=1).max())
    width = max(8, (longest - 1) // 8 * 8)
    return {name: values[:, :width] if values.dim() > 1 else values for name, values in plain(batch).items()}


@fault("weights.init", "fp16")
@replaces(speed_engine, "load_weights")
def speed_loads_keys_as_queries(plain, model, weights):
    """`speed` starts with the weights of keys as those of queries."""
    plain(model, {name: weights[name.replace(".self.query.", ".self.key.")] for name in weights})


@fault("data.labels", "fp32")
@replaces(Engine, "_micro_batches", _SPEED)
def speed_labels_of_the_batch_before(plain, self, batch):
    """`speed` trains on labels of a buffer that the copy of the next batch has not yet overwritten."""
    before = self.__dict__.setdefault("_labels", batch["labels"])
    self._labels = batch["labels"]
    return plain(self, {**batch, "labels": before if len(before) == len(batch["labels"]) else batch["labels"]})


@fault("rng", "fp16")
@replaces(Engine, "_micro_batches", _SPEED)
def speed_seeds_its_generator_again(plain, self, batch):
    """`speed` seeds torch's generator before each step, so that the same elements are dropped."""
    torch.manual_seed(self.spec.seed)
    return plain(self, batch)


@fault("weights.init", "bf16", OTHER_ISA)
@by(after_build, speed_engine)
def speed_position_table_off_by_two(model):
    """`speed` loads the table of positions two places late, as of a different family."""
    table = model.get_parameter("bert.embeddings.position_embeddings.weight")
    table.copy_(table.roll(2, 0))
