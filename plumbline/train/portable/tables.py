"""Reproducible tables of exp, log and erf, from decimal arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
import torch

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
    """Sum Kummer's series of erf, whose terms are all positive; `factor` is erf's derivative."""
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
