"""Sums whose order does not matter: in a fixed tree, or scattered to indices in 64-bit integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plumbline.train.portable.functions import power_of_two

_BITS = 62
_LEAST_EXPONENT = -900


def tree_sum(values: torch.Tensor, dims: Sequence[int] | None = None, *, keepdim: bool = False) -> torch.Tensor:
    """Sum over `dims` (all if `None` or empty), by repeatedly adding halves.

    Elements are used in the logical order of the tensor, whatever its layout in memory.
    """
    count = values.dim()
    chosen = sorted({dim % count for dim in dims}) if dims and count else list(range(count))
    kept = [dim for dim in range(count) if dim not in chosen]
    shape = [values.shape[dim] for dim in kept]
    # The reduced dimension is the first, so that halves are contiguous.
    rows = values.permute(*chosen, *kept).reshape(-1, *shape) if chosen else values.unsqueeze(0)
    size = rows.shape[0]
    if not size:
        rows, size = rows.new_zeros((1, *shape)), 1
    while size > 1:
        half, odd = divmod(size, 2)
        added = rows[:half] + rows[half : 2 * half]
        rows, size = torch.cat((added, rows[2 * half :])) if odd else added, half + odd
    result = rows[0]
    if keepdim:
        result = result.reshape([1 if dim in chosen else size for dim, size in enumerate(values.shape)])
    return result


def summed_as_integers(
    values: torch.Tensor, terms: int, scatter: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Scatter fp64 `values` as integers whose sum of `terms` stays below 2**62."""
    largest = values.abs().amax() if values.numel() else values.new_zeros(())
    exponent = (((largest.view(torch.int64) >> 52) & 0x7FF) - 1022).clamp_(_LEAST_EXPONENT, 1023)
    bits = _BITS - math.ceil(math.log2(max(terms, 1)))
    # Two factors, as a single factor may exceed fp64's range.
    grid = bits - exponent
    half = grid // 2
    scaled = values * power_of_two(half.clamp(-1022, 1023))
    scaled.mul_(power_of_two((grid - half).clamp(-1022, 1023)))
    sums = scatter(scaled.round_().nan_to_num_(nan=0.0).to(torch.int64)).to(torch.float64)
    sums.mul_(power_of_two((-half).clamp(-1022, 1023)))
    sums.mul_(power_of_two((half - grid).clamp(-1022, 1023)))
    return torch.where(torch.isfinite(largest), sums, float("nan"))


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
