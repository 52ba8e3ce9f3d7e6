"""Sums in a fixed tree: the shape alone determines the order of additions."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
