"""Matrix products and sums with results independent of summation order.

Products: each row of A and each column of B is rounded to integers of t = (53 - ceil(log2 K)) // 2 bits, on a
power-of-two grid of its own. Every product of two such integers and every sum of K of them is below 2**53, and so exact
in fp64, whatever the blocking, threads, fused multiply-add or library. Further slices contain the rounding errors of
the earlier slices: two slices need three products, and n slices all pairs whose places add up to less than n. (Ozaki,
Ogita, Oishi and Rump, "Error-free transformations of matrix multiplication", Numerical Algorithms 59, 2012.) Sums go in
a fixed tree, or are scattered to indices in 64-bit integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from plumbline.schema.spec import RunSpec
from plumbline.train.failure import TrainingFailedError
from plumbline.train.portable.functions import power_of_two

_EXPONENT = 0x7FF
_FULL_FP64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities of the cards whose fp64 has half of fp32's rate or more: P100, V100, A100, H100, B200."""
_LEAST_INNER, _MOST_TERMS = 128, 1024
_LEAST_EXPONENT = -450
"""Rows whose largest entry is below 2**-450 count as zero: the product's grid is then never out of fp64's range."""

_BITS = 62
_LEAST_SUMMED = -900


def grid_bits(inner: int) -> int:
    """Return the bits per entry that keep sums of `inner` products exact."""
    return (53 - math.ceil(math.log2(max(inner, 1)))) // 2


def _slices(values: torch.Tensor, dim: int, bits: int, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Split entries into `count` integers with shared exponents."""
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


@cache
def _has_slow_fp64(device: torch.device) -> bool:
    """Return whether the device computes fp64 far slower than fp32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) not in _FULL_FP64


def _pieces(values: torch.Tensor) -> list[torch.Tensor]:
    """Split integers into three fp32 pieces: multiples of 2**16, 2**8 and 1."""
    high = (values * 2.0**-16).round_()
    rest = values - high * 2.0**16
    middle = (rest * 2.0**-8).round_()
    return [high.float(), middle.float(), (rest - middle * 2.0**8).float()]


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the exact product of integer matrices stored as fp64.

    Where fp64 is slow, nine products in fp32 give the same integers: sums of 1024 products of pieces stay within 2**24.
    Below 128 terms the sums in memory would cost more than the products save.
    """
    inner = left.shape[-1]
    if inner < _LEAST_INNER or not _has_slow_fp64(left.device):
        return torch.matmul(left, right)
    lefts, rights = _pieces(left), _pieces(right)
    result: torch.Tensor | None = None
    for first in range(0, inner, _MOST_TERMS):
        here = slice(first, first + _MOST_TERMS)
        for place, other in itertools.product(range(3), range(3)):
            piece = torch.matmul(lefts[place][..., here], rights[other][..., here, :]).double()
            piece.mul_(2.0 ** (8 * (4 - place - other)))
            result = piece if result is None else result.add_(piece)
    assert result is not None  # noqa: S101 - there are terms
    return result


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
            piece = _product(rows[place], columns[order - place])
            result = piece if result is None else result.add_(piece)
        if order and result is not None:
            result.mul_(2.0**-bits)
    assert result is not None  # noqa: S101 - at least one slice
    result.mul_(power_of_two(row_grid.clamp(-1022, 1023)))
    return result.mul_(power_of_two(column_grid.clamp(-1022, 1023)))


def training_products(spec: RunSpec) -> tuple[tuple[int, int, int, int], ...]:
    """Return a layer's matmul sizes as (matrices, rows, inner, columns)."""
    model, length = spec.model, spec.data.sequence_length
    rows = max(1, spec.batch_size // spec.optimizer.accumulation_steps)
    tokens, heads, width = rows * length, rows * model.num_attention_heads, model.hidden_size
    head = width // model.num_attention_heads
    return (
        (1, tokens, width, model.intermediate_size),
        (1, model.intermediate_size, tokens, width),
        (heads, length, head, length),
        (heads, length, length, head),
    )


def check_products(device: torch.device, sizes: Sequence[tuple[int, int, int, int]] = ((1, 96, 96, 96),)) -> None:
    """Raise `TrainingFailedError` if the device's fp64 products are inexact.

    A library may emulate fp64 products from fewer bits, and chooses by size; its results would be wrong here, not only
    rounded. Each product of integers is compared, by the sums of its rows and of its columns, with integer arithmetic.
    """
    for matrices, rows, inner, columns in sizes:
        limit = 2 ** grid_bits(inner)
        left = (_counted(rows * inner, device) * 7919 * 104729 % limit).reshape(rows, inner)
        right = ((_counted(columns * inner, device) * 15485863 + 12345) % limit).reshape(columns, inner).t()
        # Transposed as a linear layer's weight is.
        factors = [each.to(torch.float64) for each in (left, right)]
        if matrices > 1:
            factors = [each.expand(matrices, *each.shape) for each in factors]
        products = _product(*factors).to(torch.int64).reshape(-1, rows, columns)
        by_rows = (left * right.sum(1)).sum(1)
        by_columns = (left.sum(0).unsqueeze(1) * right).sum(0)
        if not ((products.sum(2) == by_rows).all() & (products.sum(1) == by_columns).all()).item():
            hint = "switch the emulation of fp64 products off (cuBLAS: CUBLAS_EMULATE_DOUBLE_PRECISION=0)"
            raise TrainingFailedError(
                f"fp64 products of {rows} x {inner} by {inner} x {columns} are not exact on this device",
                code="setting", part="probe", key="portable", hint=hint,
            )  # fmt: skip


def _counted(count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64, device=device)


def tree_sum(values: torch.Tensor, dims: Sequence[int] | None = None, *, keepdim: bool = False) -> torch.Tensor:
    """Sum over `dims` (default: all) in a fixed order, by adding halves.

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
    """Scatter-add fp64 `values` exactly as integers; sums of `terms` stay below 2**62."""
    largest = values.abs().amax() if values.numel() else values.new_zeros(())
    exponent = (((largest.view(torch.int64) >> 52) & 0x7FF) - 1022).clamp_(_LEAST_SUMMED, 1023)
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
    """Sum the gradients of each embedding row, except the padding row."""
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
    """Add `source` at `index` along `dim`, with reproducible sums."""
    sizes = [torch.arange(size, device=index.device) for size in index.shape]
    places = list(torch.meshgrid(*sizes, indexing="ij"))
    places[dim] = index
    return index_put(start, places, source[tuple(slice(size) for size in index.shape)], True)


def index_put(start: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write `values` at `indices`, or add them exactly as integers."""
    # The Python function refuses `None`, which stands for a whole dimension.
    put = torch.ops.aten.index_put.default
    if not accumulate:
        found: torch.Tensor = put(start, indices, values)
        return found

    def scatter(whole: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = put(torch.zeros_like(start, dtype=torch.int64), indices, whole, True)
        return sums

    return start + summed_as_integers(values, max(values.numel(), start.numel()), scatter)
