"""Test of tonight's reruns: whether a loss is real."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plumbline.history.quantiles import normal_quantile
from plumbline.history.reference import HUGE, Reference


@dataclass(frozen=True, slots=True)
class RerunTest:
    """Result of the reruns: their mean compared with the reference."""

    holds: bool
    z: float
    limit: float
    mean: float
    spread: float = 0.0
    """SD of the reruns among themselves, which share the machine."""


def judge_reruns(reruns: Sequence[float], reference: Reference, alpha: float) -> RerunTest:
    """Test fresh reruns of tonight against the reference.

    The run that raised the question is excluded. The reruns share the night, so that their mean is compared with the
    spread of one night, not of many.
    """
    finite = [min(max(value, -HUGE), HUGE) for value in reruns if math.isfinite(value)]
    limit = normal_quantile(1 - alpha)
    if not finite:
        return RerunTest(holds=False, z=-math.inf, limit=limit, mean=math.nan)
    mean = math.fsum(finite) / len(finite)
    z = (mean - reference.centre) / reference.predicted()
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / max(len(finite) - 1, 1))
    return RerunTest(holds=z > limit, z=z, limit=limit, mean=mean, spread=spread)
