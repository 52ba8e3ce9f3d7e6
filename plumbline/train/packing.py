"""Packed batches: several texts in one row, of which each attends to itself alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Packing:
    """Places of a batch's tokens in packed rows, int64 [packed rows, length]."""

    source: torch.Tensor
    """Index of each token in the flattened batch; the batch's size for padding."""
    texts: torch.Tensor
    """Row of each token in the batch, counted from 1; 0 for padding."""
    rows: int

    def to(self, device: torch.device) -> Packing:
        """Return the packing on a device."""
        moved = [each.to(device, non_blocking=True) for each in (self.source, self.texts)]
        return Packing(moved[0], moved[1], self.rows)

    @property
    def positions(self) -> torch.Tensor:
        """Return the place of each token in its own text."""
        return self.source % self.source.shape[1]

    def pack(self, values: torch.Tensor, padding: int) -> torch.Tensor:
        """Return a field of the batch, [rows, length], in packed rows."""
        return torch.cat((values.reshape(-1), values.new_full((1,), padding)))[self.source]

    def unpack(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of packed tokens, [packed rows, length, ...], in the batch's rows; zero for padding."""
        length, inner = self.source.shape[1], values.shape[2:]
        flat = values.new_zeros((self.rows * length + 1, *inner))
        flat[self.source.reshape(-1)] = values.reshape(-1, *inner)
        return flat[:-1].reshape(self.rows, length, *inner)


def pack_rows(mask: torch.Tensor) -> Packing:
    """Return the packing of a batch on the host: each text, in order, into the first row that has room."""
    rows, length = mask.shape
    tokens = np.flatnonzero(mask.numpy())
    counts = np.bincount(tokens // length, minlength=rows)
    used: list[int] = []
    starts = np.zeros(rows, np.int64)
    for row, count in enumerate(counts.tolist()):
        place = next((place for place, held in enumerate(used) if held + count <= length), len(used))
        if place == len(used):
            used.append(0)
        starts[row] = place * length + used[place]
        used[place] += count
    # Tokens of a text follow each other: the first one of each row is at the text's start.
    first = np.cumsum(counts) - counts
    places = np.arange(len(tokens)) + np.repeat(starts - first, counts)
    source, texts = np.full(len(used) * length, rows * length), np.zeros(len(used) * length, np.int64)
    source[places], texts[places] = tokens, tokens // length + 1
    shape = len(used), length
    return Packing(torch.from_numpy(source.reshape(shape)), torch.from_numpy(texts.reshape(shape)), rows)
