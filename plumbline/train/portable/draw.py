"""Randomized check of a round: portable logits of one random row.

Nothing of an earlier night contains it, and it is equal on all machines.
"""

from __future__ import annotations

import numpy as np
import torch

from plumbline.data.staging.order import random_keys
from plumbline.train.batches import Batch
from plumbline.train.digests import host_array
from plumbline.train.engine import Engine
from plumbline.train.models.families import input_fields


def drawn_row(batch: Batch, vocab_size: int, draw: str) -> Batch:
    """Return one random batch row with about half its tokens replaced randomly."""
    ids = batch["input_ids"]
    (first,) = random_keys(1, "row", draw)
    row = int(first % np.uint64(len(ids)))
    piece = {name: values[row : row + 1] for name, values in batch.items()}
    tokens, chosen = random_keys(2 * ids.shape[1], "tokens", draw).reshape(2, -1)
    drawn = torch.from_numpy((tokens % np.uint64(vocab_size)).astype(np.int64))
    replaced = torch.from_numpy(chosen >> np.uint64(63) == 1) & (piece["attention_mask"] == 1)
    return {**piece, "input_ids": torch.where(replaced, drawn, piece["input_ids"])}


def answer(engine: Engine, batch: Batch, draw: str) -> np.ndarray:
    """Return the randomized row's logits with the current weights."""
    piece = drawn_row(batch, engine.spec.model.vocab_size, draw)
    inputs = {name: piece[name].to(engine.ranks.device) for name in input_fields(engine.bare)}
    with torch.no_grad():
        return host_array(engine.bare(**inputs).logits)
