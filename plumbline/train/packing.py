"""Packed batches: several texts in one row, of which each attends to itself alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Packing", "pack_rows"]


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
    room: list[int] = []
    source = torch.full((rows, length), rows * length)
    texts = torch.zeros((rows, length), dtype=torch.int64)
    for row in range(rows):
        columns = mask[row].nonzero().reshape(-1)
        place = next((place for place, left in enumerate(room) if left >= len(columns)), len(room))
        if place == len(room):
            room.append(length)
        first = length - room[place]
        source[place, first : first + len(columns)] = row * length + columns
        texts[place, first : first + len(columns)] = row + 1
        room[place] -= len(columns)
    return Packing(source[: len(room)], texts[: len(room)], rows)
