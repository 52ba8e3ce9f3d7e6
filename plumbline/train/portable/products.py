"""Check of a device's fp64 products against integer arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from plumbline.schema.spec import RunSpec
from plumbline.train.failure import TrainingFailedError


def grid_bits(inner: int) -> int:
    """Return the bits per entry that keep sums of `inner` products exact."""
    return (53 - math.ceil(math.log2(max(inner, 1)))) // 2


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
        products = torch.matmul(*factors).to(torch.int64).reshape(-1, rows, columns)
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
