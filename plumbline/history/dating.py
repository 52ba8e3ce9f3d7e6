"""Start and shape of a loss, fitted by least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline import limits
from plumbline.history.reference import Reference

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Onset:
    """Start of a loss, its shape, and its size tonight.

    `index` is the first night of the loss.
    """

    index: int
    shape: Literal["step", "creep"]
    size: float


def onset(values: Values, reference: Reference) -> Onset:
    """Fit a step and a ramp; return the better one.

    Both begin at the reference's centre; every night is tried as the first. Least squares on winsorised deviations;
    `values` are one level's nights, finite, tonight last.
    """
    first = max(len(values) - limits.REACH_NIGHTS, 0)
    off = values[first:] - reference.centre
    width = max(
        4 * reference.spread, abs(float(np.median(off[-limits.SIDE_NIGHTS :]))) + limits.WINSOR * reference.spread
    )
    off = np.clip(off, -width, width)
    # Sums over the nights from each start to tonight.
    tail = off[::-1].cumsum()[::-1]
    count = np.arange(len(off), 0, -1, dtype=np.float64)
    step_gain = np.where(tail > 0, tail**2 / count, 0.0)
    weighted = (np.cumsum(tail[::-1]))[::-1]  # sum of (t - t0 + 1) * off, for every start t0
    squares = count * (count + 1) * (2 * count + 1) / 6
    ramp_gain = np.where((weighted > 0) & (count >= 4), weighted**2 / squares, 0.0)
    step, ramp = int(step_gain.argmax()), int(ramp_gain.argmax())
    if ramp_gain[ramp] > step_gain[step]:
        return Onset(first + ramp, "creep", float(weighted[ramp] / squares[ramp] * count[ramp]))
    return Onset(first + step, "step", float(tail[step] / count[step]))
