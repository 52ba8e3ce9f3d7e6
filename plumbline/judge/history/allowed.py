"""Significance levels of single tests, from the tolerated false alarms per year.

Two kinds of test have two budgets. A detection only requests experiments, and a false one costs runs:
`questions_a_year` bounds that cost. A confirmation may end in an alarm: `false_alarms_a_year` is divided by the
maximum number of confirmations, one experiment for each platform and night, so that the bound holds whatever the noise
and however many detections there are. `docs/MATH.md` derives each formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plumbline.judge.statistics.paired import least_blocks
from plumbline.schema import limits
from plumbline.schema.suite import Dispatch, Gates

NIGHTS_A_YEAR = 365
_DETECTORS = 2
_GATES, _DISPATCH = Gates(), Dispatch()


@dataclass(frozen=True, slots=True)
class Margin:
    """Change of a metric to ignore, as new software causes such changes."""

    size: float
    is_of_loss: bool = False
    """Whether `size` is a change of exp(-loss), and the series holds log(loss)."""

    def at(self, centre: float) -> float:
        """Return the margin as a difference in scores around `centre`.

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
    """Limits of a decision: significance levels, and numbers of tonight's experiments."""

    detection_chance: float
    """Chance of a false detection per night and detector."""
    software_alpha: float
    """Level of the interleaved A/B."""
    lasting_alpha: float
    """Level of a regression that lasts, judged without an A/B."""
    open_nights: int
    """Nights after which an open question waits for no experiment: it is drift, if they show the regression."""
    num_reruns: int
    num_blocks: int
    """Blocks of four runs of the A/B at least, two of each environment in random order; 0: none."""
    least_change: float
    """Relative: a smaller confirmed difference is a note."""
    anchor_limit: float
    """Relative: a cumulative regression against the anchor above it is drift, however slow."""
    drop: float
    """Loss of throughput that the team tolerates: a larger one is always asked about, however few nights there are."""
    is_limited: bool = False
    """Whether the series is the throughput."""
    margins: Mapping[str, Margin] = field(default_factory=dict)
    margin: Margin | None = None
    """Margin of the series' metric, of `margins`; it replaces `least_change` and `anchor_limit`."""

    def ab_alpha(self, num_tested: int) -> float:
        """Return the significance level per series of an A/B test."""
        return self.software_alpha / max(num_tested, 1)

    def ab_blocks(self, num_tested: int, noise: float = 0.0) -> int:
        """Return the number of blocks that an A/B test needs.

        `noise` is the SD of a run on this machine, in units of the regression. Up to four times as many blocks rule out
        half of the regression in most experiments of equal environments.
        """
        least = max(self.num_blocks, least_blocks(self.ab_alpha(num_tested)) + 1)
        return min(max(least, math.ceil((limits.RESOLVING * noise) ** 2)), limits.MOST_BLOCKS * least)

    @property
    def tolerated(self) -> float:
        """Return the largest hardware-caused regression that passes; infinite without a limit."""
        return self.drop if self.is_limited or self.margin is not None else math.inf

    def of(self, metric: str) -> Allowed:
        """Return the limits for one metric."""
        limited = replace(self, is_limited=metric == "throughput")
        return replace(limited, margin=self.margins[metric]) if metric in self.margins else limited

    def at(self, centre: float) -> Allowed:
        """Return the limits for a series with this centre."""
        if self.margin is None:
            return self
        size = self.margin.at(centre)
        return replace(self, least_change=size, anchor_limit=size, drop=size)


def allowed_for(
    *,
    num_platforms: int,
    num_series: int,
    gates: Gates = _GATES,
    dispatch: Dispatch = _DISPATCH,
    margins: Mapping[str, Margin] | None = None,
    has_experiments: bool = True,
) -> Allowed:
    """Return the decision limits that a suite configures.

    `num_series` is platforms times workloads times metrics. Without experiments all tolerated alarms are those of a
    regression that lasts, which three nights may show.
    """
    nights, points = (NIGHTS_A_YEAR * max(number, 1) for number in (num_platforms, num_series))
    share = limits.EXPERIMENT_SHARE if has_experiments else 0.0
    return Allowed(
        detection_chance=min(gates.questions_a_year / _DETECTORS / points, limits.ALPHA),
        software_alpha=min(limits.EXPERIMENT_SHARE * gates.false_alarms_a_year / nights, limits.LEVEL),
        lasting_alpha=min((1 - share) * gates.false_alarms_a_year / points, limits.LEVEL),
        open_nights=gates.open_nights,
        num_reruns=dispatch.reruns if has_experiments else 0,
        num_blocks=dispatch.ab_blocks if has_experiments else 0,
        least_change=limits.LEAST_CHANGE,
        anchor_limit=gates.throughput_drop / 2,
        drop=-math.log1p(-gates.throughput_drop),
        margins=margins or {},
    )


def learned_margins(gates: Gates) -> dict[str, Margin]:
    """Return margins for metrics that change only when the software changes.

    Memory is a cost as time is, and has the limit of time.
    """
    loss = Margin(gates.accuracy_margin, is_of_loss=True)
    memory = Margin(gates.throughput_drop)
    return {"accuracy": Margin(gates.accuracy_margin), "evaluation_loss": loss, "peak_memory": memory}
