"""State of a series, a decision on its next night, and the state after it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.statistics.changepoints import ChangePoint
from plumbline.judge.statistics.paired import PairedTest
from plumbline.judge.statistics.samples import HUGE, Values
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
    """Reported regression that no later night has ended, with the size that decided it.

    `before` is the reference that it is worse than; `level` and `lead` are those before it, which return after a
    recovery. `is_cleared`: it is not the software's; `is_software`: an A/B says that it is.
    """

    since: int
    before: Reference
    size: float
    level: int
    is_cleared: bool = False
    lead: float = 0.0
    is_software: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """State of a comparable series before tonight.

    Higher values are worse; `nan` means that a night has no value. `level` is where the present level begins: a
    boundary of the segment, a proven gain, or a reported regression. `untested` is the night after the newest one for
    which experiments showed no software regression, or nights ruled one out. `lead` is how much better the level's
    software is than the baseline's, by A/Bs; `nan`: unknown. `anchor` is the reference of the first acceptance. `prior`
    is that of the previous level, whose spread this level's shares. Of `calls` each is worse than the one before it.
    """

    values: Values
    level: int = 0
    untested: int = 0
    floor: float = limits.LEAST_SD
    anchor: Reference | None = None
    calls: tuple[Call, ...] = ()
    question: Question | None = None
    prior: Reference | None = None
    lead: float = 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Results of tonight's experiments, in the series' unit; `None`: not run.

    `tonight` and `baseline` are the runs of an A/B in these environments, [blocks, 2] in the same blocks. It answers
    `num_tested` series, by which its level is divided. With `is_whole` a whole file
    has been searched for changes of level, and shows `change` on this night.
    """

    reruns: tuple[float, ...] | None = None
    tonight: Values | None = None
    baseline: Values | None = None
    num_tested: int = 1
    is_whole: bool = False
    change: ChangePoint | None = None

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

    `new`: a regression was reported, or a gain proven, tonight. `open_calls` is the number of the earlier calls that
    stay open, `None`: all; `question` the suspected regression that does.
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
    open_calls: int | None = None
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


def advance(past: Past, tonight: float, decision: Decision) -> Past:
    """Return the state after tonight's decision."""
    num, is_over, dated = len(past.values), has_recovered(past, decision), decision.onset
    before = without_calls(past, decision.open_calls)
    untested = num + 1 if is_over or decision.reason == "machine" else before.untested
    if past.question is not None and decision.question is not None and decision.question.asked != past.question.asked:
        untested = num
    after = replace(before, values=np.append(before.values, tonight), untested=untested, question=decision.question)
    if not decision.new or dated is None or decision.reference is None:
        return after
    since = min(dated.index, num)
    if decision.reason == "improved":
        return moved(after, since, lead=decision.lead)
    # The level of a creep is where it has come to.
    level = max(since, num + 1 - limits.LEAST_NIGHTS) if dated.shape == "creep" else since
    after, known = moved(after, level, lead=decision.lead), after
    # The nights before a loss may be too few to know their spread.
    before_loss = after.prior or Reference(0.0, past.floor, limits.ENOUGH_NIGHTS, 0.0)
    reference = replace(before_loss, centre=decision.reference.centre)
    by_ab = decision.reason == "software"
    call = Call(since, reference, max(dated.size, 0.0), known.level, decision.is_cleared, known.lead, by_ab)
    return replace(after, calls=(*known.calls, call))


def moved(past: Past, since: int, *, lead: float) -> Past:
    """Return the state with new reference nights from `since` on, and without calls."""
    prior = reference_of(past.values[past.level : since], floor=past.floor, prior=past.prior, is_whole=True)
    return replace(past, level=since, untested=since, lead=lead, calls=(), question=None, prior=prior or past.prior)


def has_recovered(past: Past, decision: Decision) -> bool:
    """Return whether tonight ends an open or reported regression."""
    if decision.open_calls is not None and decision.open_calls < len(past.calls):
        return not decision.new and decision.verdict != "inconclusive"
    return past.question is not None and decision.question is None and decision.verdict == "pass" and not past.calls


def without_calls(past: Past, num_open: int | None) -> Past:
    """Return the state with the first `num_open` calls alone; the nights of the others enter no reference."""
    if num_open is None or num_open >= len(past.calls):
        return past
    ended, values = past.calls[num_open], past.values.copy()
    values[ended.since :] = np.nan
    return replace(past, values=values, level=ended.level, lead=ended.lead, calls=past.calls[:num_open])


def level_reference(past: Past) -> Reference | None:
    """Return the level's reference, without nights since an open regression began."""
    question = past.question
    nights = past.values[past.level : question.since if question else None]
    return reference_of(nights, floor=past.floor, prior=past.prior, is_whole=question is not None)


def nights_since(past: Past, place: int, tonight: float) -> Values:
    """Return the finite values since night `place`, including tonight's."""
    values = np.append(past.values[place:], tonight)
    return np.asarray(np.clip(values[np.isfinite(values)], -HUGE, HUGE))


def among_all(past: Past, level: int, dated: Onset) -> Onset:
    """Convert a change's index among finite nights to all nights."""
    places = np.append(np.flatnonzero(np.isfinite(past.values[level:])) + level, len(past.values))
    return replace(dated, index=int(places[min(dated.index, len(places) - 1)]))
