"""Measure how many mantissa bits each operator keeps on this device.

A setting and a kernel may disagree. Each operator gets `1 + 2**-k`, which is exact in a format of `k` or more bits: the
largest `k` that still changes the result is the number of bits kept.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from plumbline.schema import limits
from plumbline.schema.spec import Precision
from plumbline.train.numerics import autocast

_FEWEST, _MOST = 2, 52
"""Mantissa bits of the shortest and the longest format: fp8's e5m2, and fp64."""
Size = tuple[int, int, int, int]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Function of queries, keys and values, each [rows, heads, tokens, features], and of a scale."""


_LARGER = (1.75, 14.0)
"""Numbers beyond every `1 + 2**-k`, which any format of two bits has.

A format with a scale for each row or tensor takes it from them. Beside the first, integers of four bits keep a step.
Beside the second, integers of eight bits keep fewer steps than bf16.
"""
_HEAD = 64
"""Numbers of one head of attention: a size that every fused kernel computes."""


def _steps(value: torch.Tensor) -> float:
    return float(value.detach().double().reshape(-1)[0])


def kept_part(product: float, value: float) -> float:
    """Return the part of `value - 1` that survived multiplication by one.

    Some kernels round operands to TF32 with ties away from zero, so that a too small step returns as a whole step.
    """
    step = product - 1
    return step if abs(step - (value - 1)) < (value - 1) / 2 else 0.0


def _is_format(bits: int, dtype: torch.dtype) -> bool:
    """Return whether a number format with this many mantissa bits exists."""
    return _FEWEST <= bits <= round(-math.log2(torch.finfo(dtype).eps))


def _kept_bits(steps: Iterable[float]) -> int:
    """Count the consecutive small steps 2**-1, 2**-2 ... that survived rounding."""
    return sum(1 for _ in itertools.takewhile(bool, steps))


def _bits_of(products: Sequence[float], values: Sequence[float]) -> int:
    """Return how many bits survived; 0 for a wrong value."""
    if not all(value / 2 < product < value * 2 for product, value in zip(products, values, strict=True)):
        return 0
    return _kept_bits(map(kept_part, products, values))


def _of_products(device: torch.device, dtype: torch.dtype, sizes: Sequence[Size]) -> Iterator[tuple[str, int]]:
    """Yield (operator, mantissa bits) of matmul and bmm at several sizes.

    A library chooses its kernel, and so its precision, by size.
    """
    operators: tuple[tuple[str, Callable[..., torch.Tensor]], ...] = (
        ("matmul", lambda left, right: torch.matmul(left[0], right[0])),
        ("bmm", lambda left, right: torch.bmm(left, right)[0]),
    )
    for (name, multiply), (matrices, rows, inner, columns) in zip(operators, sizes[1:], strict=False):
        right = torch.eye(inner, columns, dtype=dtype, device=device).expand(matrices, inner, columns)
        steps, products = [1 + 2.0**-step for step in range(1, _MOST + 1)], list[float]()
        for first in range(0, _MOST, rows):  # a factor of fewer rows shows some of the steps
            values = steps[first : first + rows]
            left = torch.full((matrices, rows, inner), _LARGER[0], dtype=dtype, device=device)
            left[:, : len(values), 0] = torch.tensor(values, dtype=torch.float64, device=device)
            products += multiply(left, right)[: len(values), 0].double().tolist()
        yield name, _bits_of(products, steps)


def _linears(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.nn.functional.linear(inputs, weights) for inputs, weights in pairs]


def _of_layers(
    device: torch.device, dtype: torch.dtype, rows: int, shapes: Sequence[tuple[int, int]], kind: str = "linear"
) -> Iterator[tuple[str, int]]:
    """Yield (operand, mantissa bits) of linear layers, for each shape (inner, columns).

    A kernel may round each factor to a different format. The first column of inputs, and each row of weights, begins
    with all steps; a layer with no room for them is left out. A compiler takes seconds for each call, so that compiled
    layers are one graph.
    """
    bits = round(-math.log2(torch.finfo(dtype).eps))
    values = [1 + 2.0**-step for step in range(1, bits + 1)]
    steps = torch.tensor(values, dtype=torch.float64, device=device)
    sizes = [shape for shape in shapes if min(rows, shape[0]) > bits]
    calls, multiply = ([sizes], torch.compile(_linears)) if kind != "linear" else ([[size] for size in sizes], _linears)
    for call, larger, name in itertools.product(calls, _LARGER, (kind, f"{kind} weights")):
        pairs = list[tuple[torch.Tensor, torch.Tensor]]()
        for inner, columns in call:
            inputs, weights = (torch.eye(num, inner, dtype=dtype, device=device) for num in (rows, columns))
            if name == kind:
                inputs.fill_(larger)[:bits, 0] = steps
            else:
                weights.fill_(larger)[:, :bits] = steps
            pairs.append((inputs, weights))
        for product in multiply(pairs):
            yield name, _bits_of(product[:bits, 0].double().tolist(), values)


def measure_attention(attend: Attention, device: torch.device, precision: Precision) -> dict[str, int]:
    """Return the mantissa bits that the model's attention keeps of its operands."""
    with torch.no_grad(), autocast(precision, device):
        one = torch.ones((1, 1), device=device)
        dtype = torch.nn.functional.linear(one, one).dtype  # factors of attention are results of linear layers
        found = dict(_computable(_of_attention(attend, device, dtype)))
    return {name: bits for name, bits in found.items() if _is_format(bits, dtype)}


def _of_attention(attend: Attention, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, int]]:
    """Yield the mantissa bits that attention keeps of each input."""
    bits = round(-math.log2(torch.finfo(dtype).eps))
    steps = torch.tensor([2.0**-step for step in range(1, bits + 1)], dtype=torch.float64, device=device)
    values = torch.nn.functional.pad(1 + steps, (0, _HEAD - bits), value=1.0).to(dtype).reshape(1, 1, 1, _HEAD)
    found = attend(values, values, values, 1.0).double().reshape(-1)  # of a single key, the output is the value
    yield "attention", _bits_of(found[:bits].tolist(), (1 + steps).tolist())
    for name, is_query in (("attention queries", True), ("attention keys", False)):
        yield name, _kept_bits(map(_is_one, _scores(attend, dtype, steps, is_query=is_query)))
    yield "attention scores", _kept_bits(map(_is_one, _weights_apart(attend, dtype, steps[: limits.SCORE_BITS])))


def _is_one(number: float) -> bool:
    """Return whether a small step survived rounding, scaled to one."""
    return math.isclose(number, 1.0, rel_tol=0.0, abs_tol=0.5)


def _zeros(dtype: torch.dtype, steps: torch.Tensor, tokens: int) -> torch.Tensor:
    return torch.zeros((len(steps), 1, tokens, _HEAD), dtype=dtype, device=steps.device)


def _weights_apart(attend: Attention, dtype: torch.dtype, steps: torch.Tensor) -> list[float]:
    """Return how much one small step changes the attention weights."""
    query, keys, values = (_zeros(dtype, steps, tokens) for tokens in (1, 2, 2))
    query[..., :2] = keys[..., 0] = 1.0
    keys[:, 0, 0, 1] = steps.to(dtype)
    values[:, 0, 0, 0], values[:, 0, 1, 0] = (2 / steps).to(dtype), (-2 / steps).to(dtype)
    apart: list[float] = attend(query, keys, values, 1.0).double().reshape(len(steps), -1)[:, 0].tolist()
    return apart


def _scores(attend: Attention, dtype: torch.dtype, steps: torch.Tensor, *, is_query: bool) -> Iterator[float]:
    """Yield attention scores that differ by one small step.

    The two other keys have a score of zero, so that the first key's weight shows its score. One row has larger numbers,
    which a format with a scale for each channel takes it from.
    """
    shown, factor, value = (_zeros(dtype, steps, 3) for _ in range(3))
    shown[:, 0, 0, 0], shown[:, 0, 0, 1] = (1 + steps).to(dtype), 1.0
    shown[:, 0, 2, :2] = _LARGER[0]
    factor[:, 0, 0, 0], factor[:, 0, 0, 1] = (1 / steps).to(dtype), (-1 / steps).to(dtype)
    value[..., 0, 0] = 1.0
    query, key = (shown, factor) if is_query else (factor, shown)
    for weight in attend(query, key, value, 1.0).double().reshape(len(steps), -1)[:, 0].tolist():
        yield math.log(2 * weight / (1 - weight)) if 0 < weight < 1 else math.nan


def _computable(operators: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield results until an operator is unsupported on this device."""
    with contextlib.suppress(RuntimeError, TypeError, ValueError, AttributeError):
        yield from operators


def _of_functions(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, int]]:
    """Yield (operator, mantissa bits) of elementwise functions, softmax, embedding and layer norm."""
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
    device: torch.device, precision: Precision, sizes: Sequence[Size], layers: Sequence[tuple[int, int]], *,
    compiled: bool = False,
) -> dict[str, int]:  # fmt: skip
    """Return the mantissa bits that each operator keeps at least.

    `sizes` are those of linear, general and batched products, as (matrices, rows, inner, columns), and `layers` the
    shapes of all linear layers, as (inner, columns); `compiled`: also those of linear layers in compiled code.
    """
    dtype, rows = torch.float64 if precision == "fp64" else torch.float32, sizes[0][1]
    found = dict[str, int]()
    with torch.no_grad(), autocast(precision, device):
        measured = (
            _of_layers(device, dtype, rows, layers), _of_products(device, dtype, sizes),
            _computable(_of_functions(device, dtype)),
            _computable(_of_layers(device, dtype, rows, layers, "compiled linear")) if compiled else (),
        )  # fmt: skip
        for name, bits in itertools.chain(*measured):
            if _is_format(bits, dtype):
                found[name] = min(bits, found.get(name, bits))
    return found
