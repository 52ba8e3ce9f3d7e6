"""Portable forms of operations that add or write at indices."""

from __future__ import annotations

from typing import Any

import torch

from plumbline.train.portable.fixed_point import summed_as_integers


def embedding_backward(
    gradient: torch.Tensor, indices: torch.Tensor, rows: int, padding: int, by_frequency: bool
) -> torch.Tensor:
    """Sum the gradients of each table row, except the padding's."""
    places = indices.reshape(-1)
    pieces = gradient.reshape(len(places), -1)
    if by_frequency:
        counts = torch.zeros(rows, dtype=torch.int64, device=places.device).index_add(
            0, places, torch.ones_like(places)
        )
        pieces = pieces / counts.index_select(0, places).to(pieces).unsqueeze(1)
    if padding >= 0:
        pieces = pieces.masked_fill((places == padding).unsqueeze(1), 0.0)

    def scatter(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros((rows, values.shape[1])).index_add(0, places, values)

    return summed_as_integers(pieces, len(places), scatter)


def scatter_add(start: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Add `source` at `index` along `dim`, as a repeatable indexed sum."""
    sizes = [torch.arange(size, device=index.device) for size in index.shape]
    places = list(torch.meshgrid(*sizes, indexing="ij"))
    places[dim] = index
    return index_put(start, places, source[tuple(slice(size) for size in index.shape)], True)


def index_put(start: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write `values` at `indices`, or add them as integers."""
    # The Python function refuses `None`, which stands for a whole dimension.
    put = torch.ops.aten.index_put.default
    if not accumulate:
        found: torch.Tensor = put(start, indices, values)
        return found

    def scatter(whole: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = put(torch.zeros_like(start, dtype=torch.int64), indices, whole, True)
        return sums

    return start + summed_as_integers(values, max(values.numel(), start.numel()), scatter)
