"""Measurement of mantissa bits: those that a tensor's values use, and those that an operator keeps on this device.

A setting and a kernel may disagree. Each operator gets `1 + 2**-k`, which is exact in a format of `k` or more bits: the
largest `k` that still changes the result is the number of bits kept.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from plumbline.schema.mantissa import FORMATS, NUM_COUNTS, SAMPLED
from plumbline.schema.spec import Precision
from plumbline.train.numerics import autocast

_FEWEST, _MOST = 2, 52
"""Mantissa bits of the shortest and the longest format: fp8's e5m2, and fp64."""
Size = tuple[int, int, int, int]


_LARGER = 1.75
"""A number beyond every `1 + 2**-k`, which any format of two bits has."""
_HEAD = 64
"""Numbers of one head of attention: a size that every fused kernel computes."""
_SCORE_BITS = 10
_FP64_BITS = 52
_FP64_INFINITY = 2047


class Sample:
    """Evenly spaced values of a tensor that arrives in pieces; nothing waits for the device."""

    def __init__(self, size: int) -> None:
        self._step = max(1, -(-size // SAMPLED))
        while math.gcd(self._step, size) > 1:  # no column of the tensor is preferred
            self._step += 1
        self._end, self._pieces = 0, list[torch.Tensor]()

    def add(self, piece: torch.Tensor, start: int = 0) -> None:
        """Add the values from element `start` on, of a piece in order from where the last one ended."""
        first = max(start, self._end) if start else self._end
        self._end = first + piece.numel()
        values = piece.detach().reshape(-1)[-first % self._step :: self._step]
        # Later work may overwrite the tensor.
        self._pieces.append(values.clone() if values.numel() else values)

    def counts(self) -> torch.Tensor:
        """Return the `MantissaCounts` of the values, fp64 on their device."""
        if not self._pieces:  # the first process measures what is in main memory
            return torch.zeros(NUM_COUNTS, dtype=torch.float64)
        words = torch.cat(self._pieces).double().abs().view(torch.int64).sort().values
        mantissas, exponents = words & ((1 << _FP64_BITS) - 1), words >> _FP64_BITS
        values = (mantissas != 0) & (exponents < _FP64_INFINITY)
        distinct = values.clone()
        distinct[1:] &= words[1:] != words[:-1]
        beyond = [distinct & ((mantissas & ((1 << (_FP64_BITS - bits)) - 1)) != 0) for bits in FORMATS]
        return torch.stack([values, distinct, *beyond]).sum(1).double()


def _steps(value: torch.Tensor) -> float:
    return float(value.detach().double().reshape(-1)[0])


def _kept(product: torch.Tensor, value: float) -> float:
    """Return the part of `value - 1` that a product by one kept; 0 if rounded away.

    Some kernels round operands to TF32 with ties away from zero, so that a too small step returns as a whole step.
    """
    step = _steps(product) - 1
    return step if abs(step - (value - 1)) < (value - 1) / 2 else 0.0


def _is_format(bits: int, dtype: torch.dtype) -> bool:
    """Return whether a number format of these bits exists: an operator that computes something else keeps no format."""
    return _FEWEST <= bits <= round(-math.log2(torch.finfo(dtype).eps))


def _kept_bits(steps: Iterable[float]) -> int:
    """Return how many of the steps 2**-1, 2**-2 ... changed the result, before the first that did not."""
    return sum(1 for _ in itertools.takewhile(bool, steps))


def _of_products(device: torch.device, dtype: torch.dtype, sizes: Sequence[Size]) -> Iterator[tuple[str, int]]:
    """Yield (operator, bits kept) of the training's products, whose rows each show another step.

    A library chooses its kernel, and so its precision, by size. A kernel may round each factor to a different format.
    """
    functional = torch.nn.functional
    operators: tuple[tuple[str, Callable[..., torch.Tensor]], ...] = (
        ("linear", lambda left, right: functional.linear(left[0], right[0].t())),
        ("matmul", lambda left, right: torch.matmul(left[0], right[0])),
        ("bmm", torch.bmm),
    )
    for (name, multiply), (matrices, rows, inner, columns) in zip(operators, sizes, strict=False):
        right = torch.eye(inner, columns, dtype=dtype, device=device).expand(matrices, inner, columns)
        yield name, _kept_by_rows((matrices, rows, inner), dtype, device, partial(_product, multiply, right))
    for _, rows, inner, columns in sizes[:1]:
        left = torch.eye(rows, inner, dtype=dtype, device=device)
        linear = lambda weights, left=left: functional.linear(left, weights[0]).t()  # noqa: E731
        yield "linear weights", _kept_by_rows((1, columns, inner), dtype, device, linear)


def _product(multiply: Callable[..., torch.Tensor], right: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    return multiply(left, right).reshape(-1, right.shape[-1])


def _kept_by_rows(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device,
    multiply: Callable[[torch.Tensor], torch.Tensor],
) -> int:  # fmt: skip
    """Return the bits that `multiply` keeps of a factor [matrices, rows, inner] whose rows each show another step.

    Behind its step a row has larger numbers, which a format with a scale for each row or tensor takes its scale from.
    """
    rows, kept = shape[1], list[float]()
    for first in range(0, _MOST, rows):  # a factor of fewer rows shows some of the steps
        values = [1 + 2.0 ** -(1 + step) for step in range(first, min(first + rows, _MOST))]
        factor = torch.full(shape, _LARGER, dtype=torch.float64, device=device)
        factor[:, : len(values), 0] = torch.tensor(values, dtype=torch.float64, device=device)
        product = multiply(factor.to(dtype))
        kept += [_kept(product[row, :1], value) for row, value in enumerate(values)]
    return _kept_bits(kept)


def _of_attention(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, int]]:
    """Yield the bits that fused attention keeps of its values, of its queries and of its keys."""
    # As linear layers of mixed precision leave them.
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
    attend = torch.nn.functional.scaled_dot_product_attention
    steps = torch.arange(1, _MOST + 1, dtype=torch.float64, device=device)
    values = torch.nn.functional.pad(1 + 2.0**-steps, (0, _HEAD - _MOST), value=1.0).to(dtype).reshape(1, 1, 1, _HEAD)
    found = attend(values, values, values).reshape(-1)  # of a single key, the output is the value
    yield "attention", _kept_bits(_kept(found[step - 1 : step], 1 + 2.0**-step) for step in range(1, _MOST + 1))
    bits = round(-math.log2(torch.finfo(dtype).eps))
    for name, is_query in (("attention queries", True), ("attention keys", False)):
        scores = (_score(attend, dtype, device, step, is_query=is_query) for step in range(1, bits + 1))
        yield name, _kept_bits(_is_one(score) for score in scores)
    # Beyond, it is the exponential function that rounds.
    weights = (_weights_apart(attend, dtype, device, step) for step in range(1, min(bits, _SCORE_BITS) + 1))
    yield "attention scores", _kept_bits(_is_one(apart) for apart in weights)


def _is_one(number: float) -> bool:
    """Return whether a step is rather kept than lost; a number that is not finite is neither."""
    return math.isclose(number, 1.0, rel_tol=0.0, abs_tol=0.5)


def _weights_apart(attend: Any, dtype: torch.dtype, device: torch.device, step: int) -> float:
    """Return the difference of the weights of two keys whose scores are `1 + 2**-step` and 1, times `2**(step + 1)`."""
    query, keys, values = (torch.zeros((1, 1, rows, _HEAD), dtype=dtype, device=device) for rows in (1, 2, 2))
    query[..., :2] = keys[..., 0] = 1.0
    keys[..., 0, 1] = 2.0**-step
    values[..., 0, 0], values[..., 1, 0] = 2.0 ** (step + 1), -(2.0 ** (step + 1))
    return float(attend(query, keys, values, scale=1.0)[0, 0, 0, 0])


def _score(attend: Any, dtype: torch.dtype, device: torch.device, step: int, *, is_query: bool) -> float:
    """Return the score of `1 + 2**-step` beside `1`, from whose difference a factor of `2**step` makes one.

    The other of two keys has a score of zero, so that the score is the logit of the first key's weight.
    """
    shown, factor = (torch.zeros((1, 1, 2, _HEAD), dtype=dtype, device=device) for _ in range(2))
    shown[..., 0, :2] = torch.tensor([1 + 2.0**-step, 1.0], dtype=torch.float64, device=device)
    factor[..., 0, :2] = torch.tensor([2.0**step, -(2.0**step)], dtype=torch.float64, device=device)
    value = torch.zeros_like(shown)
    value[..., 0, 0] = 1.0
    query, key = (shown, factor) if is_query else (factor, shown)
    return float(torch.logit(attend(query[..., :1, :], key, value, scale=1.0).double()[0, 0, 0, 0]))


def _computable(operators: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield up to the first operator that this device cannot compute: what is not measured contradicts nothing."""
    with contextlib.suppress(RuntimeError, TypeError, ValueError, AttributeError):
        yield from operators


def _of_functions(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, int]]:
    """Yield (operator, bits kept) of functions of two values, whose difference shows what is kept."""
    functional = torch.nn.functional
    first = torch.arange(2, device=device)
    one, zero = torch.ones(2, dtype=dtype, device=device), torch.zeros(2, dtype=dtype, device=device)
    operators: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        # Scores of attention have four dimensions.
        "softmax": lambda row: functional.softmax(row[None, None], dim=-1).double().reshape(-1).diff(),
        "gelu": lambda row: functional.gelu(row).double().diff(),
        "tanh": lambda row: torch.tanh(row).double().diff(),
        "embedding": lambda row: functional.embedding(first, row.t()).double().reshape(-1).diff(),
        "layer_norm": lambda row: functional.layer_norm(row, (2,), one, zero, 1e-30),
        "cross_entropy": lambda row: torch.stack(
            [functional.cross_entropy(row, torch.tensor([label], device=device)).double() for label in (0, 1)]
        ).diff(),
    }
    for name, operator in operators.items():
        rows = (torch.tensor([[1 + 2.0**-k, 1.0]], dtype=torch.float64, device=device) for k in range(1, _MOST + 1))
        yield name, _kept_bits(_steps(operator(row.to(dtype))) for row in rows)


def measure_mantissa_bits(
    device: torch.device, precision: Precision, sizes: Sequence[Size], *, fused_attention: bool = False
) -> dict[str, int]:
    """Return the mantissa bits kept by each operator, in the current settings.

    `sizes` are those of linear, general and batched products, as (matrices, rows, inner, columns).
    """
    dtype = torch.float64 if precision == "fp64" else torch.float32
    with torch.no_grad(), autocast(precision, device):
        measured = _of_products(device, dtype, sizes), _computable(_of_functions(device, dtype))
        found = dict(itertools.chain(*measured))
        if fused_attention:
            found |= dict(_computable(_of_attention(device, dtype)))
        return {name: bits for name, bits in found.items() if _is_format(bits, dtype)}
