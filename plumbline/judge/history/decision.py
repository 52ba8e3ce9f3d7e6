"""Data types of the decision engine: series state, experiment results, decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from plumbline.judge.history.reference import Reference
from plumbline.judge.statistics.paired import PairedTest
from plumbline.judge.statistics.samples import Values
from plumbline.schema import limits

Verdict = Literal["pass", "drift", "inconclusive"]
Reason = Literal[
    "quiet", "learning", "missing", "open-loss", "went-away", "software", "machine", "unconfirmed", "lasting",
    "too-small", "improved", "open-call",
]  # fmt: skip
"""Why a night has its verdict; `REASON_TEXTS` of the report says what each means."""
Software = Literal["can-differ", "equal", "unavailable"]
"""Whether the software may differ from the baseline's; `unavailable`: it may, but the baseline's cannot be rebuilt."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Detector's report that a series got worse: `score` exceeds `limit`. An experiment must confirm the regression."""

    kind: Literal["sudden", "creep", "limit", "anchor"]
    score: float
    limit: float
    begin: int | None = None
    """First night of a creep."""


@dataclass(frozen=True, slots=True)
class Onset:
    """First night of a change, its shape, and its current size."""

    index: int
    shape: Literal["step", "creep"]
    size: float


@dataclass(frozen=True, slots=True)
class Question:
    """Suspected regression, not confirmed or ruled out; its nights join no reference.

    `asked` is the night of the first question. `is_cleared`: by the newest answer the software does not cause it.
    """

    since: int
    asked: int
    size: float
    is_cleared: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Reported regression that no later night has ended.

    `level` and `lead` are those before it, which return after a recovery. `is_cleared`: it is not the software's.
    """

    since: int
    centre: float
    size: float
    level: int
    is_cleared: bool = False
    lead: float = 0.0


@dataclass(frozen=True, slots=True)
class Past:
    """State of a comparable series before tonight.

    Higher values are worse; `nan` means that a night has no value. `level` is where the present level begins: a
    boundary of the segment, a proven gain, or a reported regression. `untested` is the night after the newest one for
    which experiments showed no software regression, or nights ruled one out. `lead` is how much better the level's
    software is than the baseline's, by A/Bs; `nan`: unknown. `anchor` is the reference of the first acceptance. `prior`
    is that of the previous level, whose spread is used until this level has its own.
    """

    values: Values
    level: int = 0
    untested: int = 0
    floor: float = limits.LEAST_SD
    anchor: Reference | None = None
    call: Call | None = None
    question: Question | None = None
    prior: Reference | None = None
    lead: float = 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Results of tonight's experiments, in the series' unit; `None`: not run.

    `tonight` and `baseline` are the runs of an A/B in these environments, [blocks, 2] in the same blocks. It answers
    `num_tested` series, by which its level is divided.
    """

    reruns: tuple[float, ...] | None = None
    tonight: Values | None = None
    baseline: Values | None = None
    num_tested: int = 1

    def mirrored(self) -> Answers:
        """Return the results with negated scores, to test gains as regressions."""
        reruns = None if self.reruns is None else tuple(-value for value in self.reruns)
        tonight, baseline = (None if values is None else -values for values in (self.tonight, self.baseline))
        return replace(self, reruns=reruns, tonight=tonight, baseline=baseline)


@dataclass(frozen=True, slots=True)
class RerunTest:
    """Test of the reruns' mean against the reference; `spread` is the reruns' own SD."""

    holds: bool
    z: float
    limit: float
    mean: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """Tonight's decision on a series, with its numbers.

    `new`: a regression was reported, or a gain proven, tonight. `question` is the regression still open after tonight.
    `is_cleared`: the change is not the software's, which is equal, or an A/B rules it out. `missing_blocks` is what
    the A/B lacks to show or rule out the regression. `lead` is the software's over the baseline's after a
    new regression or gain.
    """

    verdict: Verdict
    reason: Reason
    detections: tuple[Detection, ...] = ()
    needs: Literal["reruns", "ab", ""] = ""
    reference: Reference | None = None
    onset: Onset | None = None
    rerun: RerunTest | None = None
    difference: PairedTest | None = None
    size: float | None = None
    low: float | None = None
    high: float | None = None
    new: bool = False
    question: Question | None = None
    is_cleared: bool = False
    missing_blocks: int = 0
    lead: float = 0.0

    @property
    def noise(self) -> float:
        """Return the SD of one run tonight, relative to the change."""
        if self.rerun is None or self.reference is None or not self.size:
            return 0.0
        # Four runs have three degrees of freedom. The spread of a night, which bounds it, counts as one.
        return math.sqrt((3 * self.rerun.spread**2 + self.reference.spread**2) / 4) / abs(self.size)
