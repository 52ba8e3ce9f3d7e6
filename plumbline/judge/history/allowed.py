"""Levels of single tests, from tolerated false alarms per year.

Two kinds of test have two budgets. A detection only requests experiments, and a false one costs runs:
`detections_a_year` bounds that cost. A confirmation may end in an alarm: `false_alarms_a_year` is divided by the
maximum number of confirmations, one experiment for each platform and night, so that the bound holds whatever the noise
and however many detections there are. `docs/MATH.md` derives each formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import Field

from plumbline.judge.history.distributions import t_quantile
from plumbline.judge.history.paired import least_blocks
from plumbline.judge.history.reference import Reference, autocorrelation, reference_of
from plumbline.schema import limits
from plumbline.schema.base import Model
from plumbline.schema.suite import Dispatch, Gates

NIGHTS_A_YEAR = 365
_DETECTORS = 2
_GATES, _DISPATCH = Gates(), Dispatch()


@dataclass(frozen=True, slots=True)
class Margin:
    """Change of a metric that counts for nothing, because new software makes such changes by chance."""

    size: float
    is_of_loss: bool = False
    """Whether `size` is a change of exp(-loss), and the series holds log(loss)."""

    def at(self, centre: float) -> float:
        """Return the margin as a difference of scores from this centre.

        exp(-loss) is the right answer's probability, as a geometric mean. Above a loss of 1 the margin would widen
        again, so that its least relative value, about e times `size`, is kept.
        """
        if not self.is_of_loss:
            return self.size
        loss = min(math.exp(min(centre, 0.0)), 1.0)
        left = math.exp(-loss) - self.size
        return math.log(-math.log(left) / loss) if left > 0 and loss > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Allowed:
    """Limits of a decision: test levels and tonight's experiments."""

    detection_chance: float
    """Chance of a false detection per night and detector."""
    software_alpha: float
    """Level of the interleaved A/B."""
    lasting_alpha: float
    """Level of a loss that lasts, judged without an A/B."""
    open_nights: int
    """Nights after which an open question waits for no experiment: it is drift, if they show the loss."""
    num_reruns: int
    """Number of reruns; 0 for none."""
    num_blocks: int
    """Blocks of four runs of the A/B at least, two of each environment in random order; 0: none."""
    least_change: float
    """Relative: a smaller confirmed difference is a note."""
    anchor_limit: float
    """Relative: a cumulative loss against the anchor above it is drift, however slow."""
    drop: float
    """Loss of throughput that the team tolerates: a larger one is always asked about, however few nights there are."""
    rerun_alpha: float = limits.ALPHA
    """Level of the reruns' test, which only saves the more expensive A/B."""
    is_limited: bool = False
    """Whether the series is the throughput."""
    margins: Mapping[str, Margin] = field(default_factory=dict)
    """By metric."""
    margin: Margin | None = None
    """Margin of the series' metric; it replaces `least_change` and `anchor_limit`."""

    def ab_alpha(self, num_tested: int) -> float:
        """Return the level of one of the series that an A/B answers."""
        return self.software_alpha / max(num_tested, 1)

    def ab_blocks(self, num_tested: int, noise: float = 0.0) -> int:
        """Return how many blocks an A/B of so many series takes: at least one more than reach its level.

        `noise` is the SD of a run on this machine, in units of the loss. Up to four times as many blocks rule out half
        of the loss in most experiments of equal environments.
        """
        least = max(self.num_blocks, least_blocks(self.ab_alpha(num_tested)) + 1)
        return min(max(least, math.ceil((limits.RESOLVING * noise) ** 2)), limits.MOST_BLOCKS * least)

    @property
    def tolerated(self) -> float:
        """Return the loss of a machine that is no person's work; only throughput and metrics with a margin have one."""
        return self.drop if self.is_limited or self.margin is not None else math.inf

    def of(self, metric: str) -> Allowed:
        """Return the limits of one metric."""
        limited = replace(self, is_limited=metric == "throughput")
        return replace(limited, margin=self.margins[metric]) if metric in self.margins else limited

    def at(self, centre: float) -> Allowed:
        """Return the limits of a series about this centre."""
        if self.margin is None:
            return self
        size = self.margin.at(centre)
        return replace(self, least_change=size, anchor_limit=size, drop=size)


def allowed_for(
    *,
    num_platforms: int,
    num_series: int,
    false_alarms_a_year: float = _GATES.false_alarms_a_year,
    detections_a_year: float = _GATES.questions_a_year,
    open_nights: int = _GATES.open_nights,
    num_reruns: int = _DISPATCH.reruns,
    num_blocks: int = _DISPATCH.ab_blocks,
    least_change: float = limits.LEAST_CHANGE,
    throughput_drop: float = _GATES.throughput_drop,
    margins: Mapping[str, Margin] | None = None,
    has_experiments: bool = True,
) -> Allowed:
    """Return the limits of a suite.

    `num_series` is platforms times workloads times metrics. Without experiments all tolerated alarms are those of a
    loss that lasts, which three nights may show.
    """
    nights = NIGHTS_A_YEAR * max(num_platforms, 1)
    points = NIGHTS_A_YEAR * max(num_series, 1)
    share = limits.EXPERIMENT_SHARE if has_experiments else 0.0
    return Allowed(
        detection_chance=min(detections_a_year / _DETECTORS / points, limits.ALPHA),
        software_alpha=min(limits.EXPERIMENT_SHARE * false_alarms_a_year / nights, limits.LEVEL),
        lasting_alpha=min((1 - share) * false_alarms_a_year / points, limits.LEVEL),
        open_nights=open_nights,
        num_reruns=num_reruns if has_experiments else 0,
        num_blocks=num_blocks if has_experiments else 0,
        least_change=least_change,
        anchor_limit=throughput_drop / 2,
        drop=-math.log1p(-throughput_drop),
        margins=margins or {},
    )


def learned_margins(accuracy_margin: float, throughput_drop: float) -> dict[str, Margin]:
    """Return the margins of the metrics that are equal to the bit until the software changes, and then jump once.

    Memory is a cost as time is, and has the limit of time.
    """
    return {
        "accuracy": Margin(accuracy_margin),
        "evaluation_loss": Margin(accuracy_margin, is_of_loss=True),
        "peak_memory": Margin(throughput_drop),
    }


class NoiseFloor(Model):
    """Variation of a metric between unchanged runs."""

    runs: int = Field(ge=0)
    mean: float | None = None
    """Median, robust to single outliers."""
    relative_sd: float | None = None
    """Robust; `None` below three runs."""
    autocorrelation: float = 0.0


def noise_floor(values: Sequence[float]) -> NoiseFloor:
    """Return the robust noise floor of a metric.

    Values that are not finite and positive are skipped.
    """
    kept = np.array([value for value in values if math.isfinite(value) and value > 0])
    if not len(kept):
        return NoiseFloor(runs=0)
    scores = np.log(kept)
    reference = reference_of(scores, floor=1e-6, is_whole=True)
    middle = float(np.median(kept))
    if len(kept) < limits.SIDE_NIGHTS:
        return NoiseFloor(runs=len(kept), mean=middle)
    spread = reference.spread if reference is not None else float(scores.std(ddof=1))
    return NoiseFloor(runs=len(kept), mean=middle, relative_sd=spread, autocorrelation=autocorrelation(scores))


def recommended_drop(reference: Reference, allowed: Allowed) -> float:
    """Return the relative drop that chance rarely exceeds.

    Between two unchanged runs it is as rare as a false detection. z * sqrt(2) * SD: both runs vary. z is Student's, as
    the SD is estimated from few nights.
    """
    z = t_quantile(allowed.detection_chance, round(reference.freedom))
    return -math.expm1(-z * math.sqrt(2) * reference.spread)
