"""Matrix products whose partial sums never round, so that the order does not matter.

Each row of A and each column of B is rounded to integers of t = (53 - ceil(log2 K)) // 2 bits, on a power-of-two grid
of its own. Every product of two such integers and every sum of K of them is below 2**53, and so exact in fp64, whatever
the blocking, threads, fused multiply-add or library. Further slices contain the rounding errors of the earlier slices:
two slices need three products, and n slices all pairs whose places add up to less than n. (Ozaki, Ogita, Oishi and
Rump, "Error-free transformations of matrix multiplication", Numerical Algorithms 59, 2012.)
"""

from __future__ import annotations

import math

import torch

from plumbline.train.failure import TrainingFailedError
from plumbline.train.portable.functions import power_of_two

__all__ = ["check_products", "exact_product", "grid_bits"]

_EXPONENT = 0x7FF
_LEAST_EXPONENT = -450
"""Rows whose largest entry is below 2**-450 count as zero: the product's grid is then never out of fp64's range."""


def grid_bits(inner: int) -> int:
    """Return the bits per entry that keep sums of `inner` products exact."""
    return (53 - math.ceil(math.log2(max(inner, 1)))) // 2


def _slices(values: torch.Tensor, dim: int, bits: int, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return `count` integer tensors, and each row's or column's grid exponent."""
    rest = values.abs()
    largest = rest.amax(dim, keepdim=True)
    # |x| < 2**(exponent + 1), whence at most 2**bits on the grid.
    exponent = ((largest.view(torch.int64) >> 52) & _EXPONENT) - 1022
    exponent.clamp_(min=_LEAST_EXPONENT)
    torch.mul(values, power_of_two((bits - exponent).clamp_(-1022, 1023)), out=rest)
    parts = []
    for _ in range(count - 1):
        whole = rest.round()
        parts.append(whole)
        rest.sub_(whole)
        rest.mul_(float(2**bits))
    return [*parts, rest.round_()], exponent - bits


def exact_product(left: torch.Tensor, right: torch.Tensor, slices: int) -> torch.Tensor:
    """Return `left @ right` in fp64, [..., M, K] by [..., K, N], from `slices` integers per entry."""
    inner = left.shape[-1]
    if not inner:
        return torch.matmul(left, right)
    bits = grid_bits(inner)
    rows, row_grid = _slices(left, -1, bits, slices)
    columns, column_grid = _slices(right, -2, bits, slices)
    result: torch.Tensor | None = None
    for order in reversed(range(slices)):
        for place in range(order + 1):
            piece = torch.matmul(rows[place], columns[order - place])
            result = piece if result is None else result.add_(piece)
        if order and result is not None:
            result.mul_(2.0**-bits)
    assert result is not None  # noqa: S101 - at least one slice
    result.mul_(power_of_two(row_grid.clamp(-1022, 1023)))
    return result.mul_(power_of_two(column_grid.clamp(-1022, 1023)))


def check_products(device: torch.device) -> None:
    """Raise `TrainingFailedError` if the device's fp64 products are not exact.

    A library may emulate fp64 products from fewer bits; its results would be wrong here, not only rounded.
    """
    size = 96
    places = torch.arange(size * size, dtype=torch.int64, device=device).reshape(size, size)
    limit = 2 ** grid_bits(size)
    left, right = (places * 7919 * 104729) % limit, (places * 15485863 + 12345) % limit
    exact = (left.unsqueeze(2) * right.unsqueeze(0)).sum(1)
    product = torch.matmul(left.to(torch.float64), right.to(torch.float64)).to(torch.int64)
    if not (product == exact).all().item():
        hint = "switch the emulation of fp64 products off (cuBLAS: CUBLAS_EMULATE_DOUBLE_PRECISION=0)"
        raise TrainingFailedError(
            "fp64 products are not exact on this device", code="setting", part="probe", key="portable", hint=hint
        )
