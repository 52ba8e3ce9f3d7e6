"""Elementary functions in fp64 from IEEE basic operations and tables.

The functions are exp, log, erf, tanh, sigmoid, cos and sin. Each line is a separate kernel, so that no compiler
can contract two operations. Libraries round these functions differently by design; these forms have the same result on
every device. Error: a few units of 2**-53.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext

import numpy as np
import torch

Elementwise = Callable[[torch.Tensor], torch.Tensor]

_BLOCK, _DEVICE_BLOCK = 1 << 16, 1 << 24
"""Number of elements per block: on the CPU intermediate results stay in the cache, on a device they are small."""
_EXP_LEAST, _EXP_MOST = -708.0, 709.0
_EXP_FACTOR = float.fromhex("0x1.71547652b82fep+6")  # 64 / ln 2
_EXP_HIGH = float.fromhex("0x1.62e42fee00000p-7")  # ln 2 / 64, upper 32 bits
_EXP_LOW = float.fromhex("0x1.a39ef35793c76p-39")  # the rest of it
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_POLYNOMIAL = (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)
_LOG_POLYNOMIAL = (1 / 7, -1 / 6, 1 / 5, -1 / 4, 1 / 3, -0.5, 1.0)
_QUARTER_TURN = tuple(map(float.fromhex, ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")))
"""Pi / 2 in three parts of 33, 33 and 53 bits: a multiple below 2**20 of the first two is exact."""
_ANGLE_LIMIT = 1.0e6
_SIN_POLYNOMIAL = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(8, -1, -1))
_COS_POLYNOMIAL = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(9, -1, -1))
_MANTISSA, _ONE, _ROOT_OF_TWO = (1 << 52) - 1, 1023 << 52, 1.4142135623730951

EXP_STEP = 64
"""Entries of the table of 2**(i / EXP_STEP)."""
LOG_STEP, LOG_FIRST, LOG_LAST = 128, -38, 54
"""Entries of the table of log(1 + i / LOG_STEP), from LOG_FIRST to LOG_LAST."""
ERF_STEP, ERF_LIMIT = 64, 6
"""Entries of the table of erf around i / ERF_STEP, for arguments up to ERF_LIMIT."""
_ERF_TERMS = 7
_DIGITS = 50
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582")


def _erf(x: Decimal, factor: Decimal) -> Decimal:
    """Compute erf by Kummer's series; `factor` is erf's derivative."""
    term = total = x
    place = 0
    while term > Decimal(10) ** -(_DIGITS - 5):
        place += 1
        term = term * 2 * x * x / (2 * place + 1)
        total += term
    return factor * total


def _erf_coefficients(x: Decimal) -> list[float]:
    """Return the Taylor coefficients of erf at `x`, from Hermite's recurrence."""
    hermite = [Decimal(1), 2 * x]
    while len(hermite) < _ERF_TERMS:
        count = len(hermite)
        hermite.append(2 * x * hermite[-1] - 2 * (count - 1) * hermite[-2])
    factor = 2 / _PI.sqrt() * (-x * x).exp()
    coefficients, factorial = [_erf(x, factor) if x else Decimal(0)], Decimal(1)
    for power in range(1, _ERF_TERMS):
        factorial *= power
        coefficients.append(factor * (-1) ** (power - 1) * hermite[power - 1] / factorial)
    return [float(value) for value in coefficients]


def _moved(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.array(values)).to(device)


@functools.cache
def exp_table(device: torch.device) -> torch.Tensor:
    """Return 2**(i / EXP_STEP) for i in [0, EXP_STEP), fp64."""
    with localcontext() as context:
        context.prec = _DIGITS
        values = [float(Decimal(2) ** (Decimal(place) / EXP_STEP)) for place in range(EXP_STEP)]
    return _moved(values, device)


@functools.cache
def log_table(device: torch.device) -> torch.Tensor:
    """Return log(1 + i / LOG_STEP) for i in [LOG_FIRST, LOG_LAST], fp64."""
    with localcontext() as context:
        context.prec = _DIGITS
        places = range(LOG_FIRST, LOG_LAST + 1)
        values = [float((1 + Decimal(place) / LOG_STEP).ln()) for place in places]
    return _moved(values, device)


@functools.cache
def erf_table(device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return erf's Taylor coefficients, lowest power first, each fp64 [ERF_LIMIT * ERF_STEP + 1]."""
    with localcontext() as context:
        context.prec = _DIGITS
        rows = [_erf_coefficients(Decimal(place) / ERF_STEP) for place in range(ERF_LIMIT * ERF_STEP + 1)]
    return tuple(_moved(column, device) for column in zip(*rows, strict=True))


def _blocked(function: Elementwise) -> Elementwise:
    """Apply `function` block by block, to limit memory."""

    def applied(values: torch.Tensor) -> torch.Tensor:
        size = _BLOCK if values.device.type == "cpu" else _DEVICE_BLOCK
        if values.numel() <= size:
            return function(values)
        flat = values.reshape(-1)
        result = torch.empty_like(flat)
        for first in range(0, len(flat), size):
            result[first : first + size] = function(flat[first : first + size])
        return result.reshape(values.shape)

    return applied


def sqrt(values: torch.Tensor) -> torch.Tensor:
    """Return the square root, correctly rounded as IEEE 754 requires.

    On the CPU torch calls the vector library of MKL, whose fp64 root is off by one unit in up to 1.3% of the values
    (torch 2.13, Intel Xeon). NumPy calls the processor's instruction.
    """
    if values.device.type != "cpu":
        return torch.sqrt(values)
    found = torch.empty_like(values)
    with np.errstate(invalid="ignore"):
        np.sqrt(values.detach().numpy(), out=found.numpy())
    return found


def _horner(coefficients: tuple[float, ...], values: torch.Tensor) -> torch.Tensor:
    """Evaluate a polynomial, highest coefficient first, without fused multiply-add."""
    result = values * coefficients[0]
    for coefficient in coefficients[1:-1]:
        result.add_(coefficient)
        result.mul_(values)
    return result.add_(coefficients[-1])


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2**n for int64 n in [-1022, 1023], by setting exponent bits."""
    return ((exponents + 1023) << 52).view(torch.float64)


@_blocked
def exp(values: torch.Tensor) -> torch.Tensor:
    """Return e**x; 0 below -708, infinity above 709."""
    bounded = values.clamp(_EXP_LEAST, _EXP_MOST)
    nearest = bounded.mul(_EXP_FACTOR).round_()
    rest = bounded.sub_(nearest * _EXP_HIGH)
    rest.sub_(nearest * _EXP_LOW)
    whole = nearest.nan_to_num_(nan=0.0).to(torch.int64)
    result = _horner(_EXP_POLYNOMIAL, rest)
    result.mul_(exp_table(values.device).index_select(0, (whole & (EXP_STEP - 1)).reshape(-1)).reshape(values.shape))
    result.mul_(power_of_two(whole >> 6))
    result.masked_fill_(values < _EXP_LEAST, 0.0)
    return result.masked_fill_(values > _EXP_MOST, float("inf"))


@_blocked
def log(values: torch.Tensor) -> torch.Tensor:
    """Return the natural logarithm; -inf at 0, NaN below."""
    bits = values.contiguous().view(torch.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & _MANTISSA) | _ONE).view(torch.float64)
    upper = mantissa > _ROOT_OF_TWO
    mantissa = torch.where(upper, mantissa * 0.5, mantissa)
    exponent = (exponent + upper.to(torch.int64)).to(torch.float64)
    place = mantissa.sub(1.0).mul_(LOG_STEP).round_()
    centre = (place / LOG_STEP).add_(1.0)
    rest = mantissa.sub_(centre).div_(centre)
    result = _horner(_LOG_POLYNOMIAL, rest).mul_(rest)
    result.add_(exponent * _LN2_LOW)
    table = log_table(values.device)
    result.add_(table.index_select(0, (place.to(torch.int64) - LOG_FIRST).reshape(-1)).reshape(values.shape))
    result.add_(exponent * _LN2_HIGH)
    result.masked_fill_(values == 0, float("-inf"))
    result.masked_fill_(values == float("inf"), float("inf"))
    return result.masked_fill_(~(values >= 0), float("nan"))


@_blocked
def erf(values: torch.Tensor) -> torch.Tensor:
    """Return the error function by Taylor series around table entries."""
    size = values.abs().clamp_(max=float(ERF_LIMIT))
    nearest = size.mul(ERF_STEP).round_().nan_to_num_(nan=0.0)
    rest = size.sub_(nearest / ERF_STEP)
    place = nearest.to(torch.int64).reshape(-1)
    columns = erf_table(values.device)
    result = columns[-1].index_select(0, place).reshape(values.shape)
    for column in reversed(columns[:-1]):
        result.mul_(rest)
        result.add_(column.index_select(0, place).reshape(values.shape))
    return result.copysign_(values)


@_blocked
def tanh(values: torch.Tensor) -> torch.Tensor:
    """Return tanh x = ±(1 - e) / (1 + e) with e = exp(-2 |x|)."""
    falling = exp(values.abs().mul_(-2.0))
    return (1.0 - falling).div_(1.0 + falling).copysign_(values)


@_blocked
def sigmoid(values: torch.Tensor) -> torch.Tensor:
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / exp(-values).add_(1.0)


@_blocked
def sin(values: torch.Tensor) -> torch.Tensor:
    """Return the sine of angles up to a million radians; NaN beyond."""
    return _turned(values, 0)


@_blocked
def cos(values: torch.Tensor) -> torch.Tensor:
    """Return the cosine of angles up to a million radians; NaN beyond."""
    return _turned(values, 1)


def _turned(values: torch.Tensor, quarter_turns: int) -> torch.Tensor:
    """Return sin(x + quarter_turns * π/2), by a Taylor series within π/4."""
    bounded = values.clamp(-_ANGLE_LIMIT, _ANGLE_LIMIT)
    nearest = bounded.mul(2.0 / math.pi).round_()
    rest = bounded
    for part in _QUARTER_TURN:
        rest = rest - nearest * part
    turns = nearest.nan_to_num_(nan=0.0).to(torch.int64) + quarter_turns
    square = rest * rest
    sine = _horner(_SIN_POLYNOMIAL, square).mul_(rest)
    result = torch.where((turns & 1) == 1, _horner(_COS_POLYNOMIAL, square), sine)
    result = torch.where((turns & 2) == 2, -result, result)
    return result.masked_fill_(~(values.abs() <= _ANGLE_LIMIT), float("nan"))
