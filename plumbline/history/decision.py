"""The decision engine: from a series' past, tonight's value and what is allowed to one typed decision.

The night, `plumbline history`, the report, the simulator and the tests all call `decide`. Where a question is open, the
decision names the experiment that answers it; the caller runs it and calls `decide` again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.history.answers import Difference, Rerun, is_so, software_difference
from plumbline.history.dating import Onset, onset
from plumbline.history.detectors import Ask, asks
from plumbline.history.lasting import lasting_loss
from plumbline.history.limits import Allowed
from plumbline.history.quantiles import t_quantile
from plumbline.history.reference import HUGE, Reference, reference_of

__all__ = ["Answers", "Call", "Decision", "Past", "Reason", "Software", "advance", "decide"]

Values = NDArray[np.float64]


Reason = Literal[
    "quiet",  # no detector asks
    "learning",  # too few nights for a reference
    "missing",  # tonight has no finite value
    "open-question",  # an experiment is needed and has not been answered
    "went-away",  # the reruns do not show it
    "software",  # the A/B shows it
    "machine",  # the reruns show it, and it is not the software
    "unconfirmed",  # the reruns show it, and the baseline's environment cannot be built for an A/B
    "lasting",  # the loss lasts, and no experiment names the software
    "anchor",  # the cumulative loss against the first acceptance is over its limit
    "too-small",  # confirmed, and below the least change that counts
    "improved",  # lastingly better than the reference
    "open-call",  # called on an earlier night, and not gone
]
Software = Literal["can-differ", "equal", "unavailable"]
"""Whether the software may differ from the baseline's; `unavailable`: it may, but the baseline's cannot be rebuilt."""


@dataclass(frozen=True, slots=True)
class Call:
    """Called loss of an earlier night: start, previous level, and size."""

    since: int
    centre: float
    size: float
    level: int
    """Start of the level before, which returns after a recovery."""


@dataclass(frozen=True, slots=True)
class Past:
    """The earlier nights of one comparable series, higher is worse; `nan` where a night has no value.

    `level` is where the present level begins: a boundary of the segment, or a loss that was called. `asked` is the
    first night after the last one that experiments answered with no. `anchor` is the reference of the first acceptance.
    """

    values: Values
    level: int = 0
    asked: int = 0
    floor: float = 1e-3
    anchor: Reference | None = None
    call: Call | None = None
    prior: Reference | None = None
    """Reference of the previous level, whose spread is used until this level has its own."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Tonight's experiments so far, in the unit of the series; `None` means not run."""

    reruns: tuple[float, ...] | None = None
    tonight: Values | None = None
    """[blocks, 2]: runs of tonight's environment."""
    baseline: Values | None = None
    """[blocks, 2]: runs of the baseline's environment, in the same blocks."""
    num_tested: int = 1
    """Number of series that this experiment answers, by which the level is divided."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision on one series tonight, with its numbers."""

    verdict: Literal["pass", "drift", "inconclusive"]
    reason: Reason
    asks: tuple[Ask, ...] = ()
    needs: Literal["reruns", "ab", ""] = ""
    reference: Reference | None = None
    onset: Onset | None = None
    rerun: Rerun | None = None
    difference: Difference | None = None
    size: float | None = None
    low: float | None = None
    high: float | None = None
    new: bool = field(default=False)
    """Whether the loss was called tonight, not on an earlier night."""


def decide(
    past: Past,
    tonight: float,
    allowed: Allowed,
    answers: Answers = Answers(),
    *,
    software: Software = "can-differ",
) -> Decision:
    """Decide on tonight's value (higher is worse); request reruns, then an A/B, if a detector asks.

    Never raises on short, constant, missing or non-finite values, and never passes a night without a value.
    """
    if not math.isfinite(tonight):
        return Decision("inconclusive", "missing")
    kept = np.isfinite(past.values)
    values = np.clip(past.values[kept], -HUGE, HUGE)
    tonight = min(max(tonight, -HUGE), HUGE)
    level = int(kept[: past.level].sum())
    reference = reference_of(values[level:], floor=past.floor, prior=past.prior)
    still = _still_called(past.call, values, tonight)
    if reference is None:
        return still or Decision("inconclusive", "learning")
    here = np.append(values[level:], tonight)
    found = asks(here, int(kept[: past.asked].sum()) - level, reference, allowed)
    over = _over_anchor(past, values, tonight, allowed)
    if over is not None:
        found = (*found, over)
    if not found:
        return still or _quiet(here, reference, allowed)
    case = _Case(here, reference, found, allowed, answers, software, past)
    decided = _with_index(
        case.decision(), int(np.flatnonzero(kept)[level]) if level < len(values) else past.level, kept
    )
    return still if still is not None and decided.verdict != "drift" else decided


def advance(past: Past, tonight: float, decision: Decision) -> Past:
    """Return the next night's past, with tonight's value, calls and answers."""
    num = len(past.values)
    values = np.append(past.values, tonight)
    if decision.new and decision.onset is not None and decision.reference is not None:
        since = min(decision.onset.index, num)
        call = Call(since, decision.reference.centre, max(decision.onset.size, 0.0), past.level)
        return replace(past, values=values, level=since, asked=since, call=call, prior=decision.reference)
    if past.call is not None and decision.verdict == "pass":
        return replace(past, values=values, level=past.call.level, asked=num + 1, call=None)
    if decision.reason == "machine" and decision.difference is not None:
        return replace(past, values=values, asked=num + 1)
    return replace(past, values=values)


def _with_index(decision: Decision, first: int, kept: NDArray[np.bool_]) -> Decision:
    """Convert the onset's index to one among all nights, including missing values."""
    if decision.onset is None:
        return decision
    places = np.append(np.flatnonzero(kept), len(kept))
    places = places[places >= first]
    moved = Onset(int(places[min(decision.onset.index, len(places) - 1)]), decision.onset.shape, decision.onset.size)
    return replace(decision, onset=moved)


def _still_called(call: Call | None, values: Values, tonight: float) -> Decision | None:
    """Keep a call open until three nights' median recovers by half."""
    if call is None:
        return None
    recent = float(np.median(np.append(values[-2:], tonight)))
    if recent - call.centre < call.size / 2:
        return None
    return Decision("drift", "open-call", size=recent - call.centre)


def _quiet(here: Values, reference: Reference, allowed: Allowed) -> Decision:
    mirrored = lasting_loss(-here, replace(reference, centre=-reference.centre), allowed.lasting_alpha)
    improved = mirrored.holds and mirrored.size > allowed.least_change
    size = -mirrored.size if improved else float(here[-1]) - reference.centre
    return Decision("pass", "improved" if improved else "quiet", reference=reference, size=size)


def _over_anchor(past: Past, values: Values, tonight: float, allowed: Allowed) -> Ask | None:
    """Ask if five nights' median exceeds the loss allowed against the anchor."""
    if past.anchor is None:
        return None
    recent = np.append(values[-4:], tonight)
    lost = lasting_loss(recent, past.anchor, allowed.software_alpha, ranked=False)
    if lost.holds and lost.size > allowed.anchor_limit:
        return Ask("anchor", max(len(values) - past.level, 0), lost.size, allowed.anchor_limit)
    return None


@dataclass(frozen=True, slots=True)
class _Case:
    """Open question of a detector, with its answers so far."""

    here: Values
    reference: Reference
    asks: tuple[Ask, ...]
    allowed: Allowed
    answers: Answers
    software: Software
    past: Past

    def decision(self) -> Decision:
        """Decide by the cheapest experiments first."""
        if self.answers.reruns is None:
            return self._open("reruns" if self.allowed.num_reruns else "")
        rerun = is_so(self.answers.reruns, self.reference, self.allowed.so_alpha)
        if not math.isfinite(rerun.z):
            return self._open("")
        if self.past.anchor is not None and any(question.kind == "anchor" for question in self.asks):
            against = is_so(self.answers.reruns, self.past.anchor, self.allowed.so_alpha)
            if against.holds:
                return self._decided("drift", "anchor", against, reference=self.past.anchor)
        if not rerun.holds:
            return self._decided("pass", "went-away", rerun)
        if self.software == "can-differ":
            return self._by_experiment(rerun)
        return self._without_experiment(rerun)

    def _by_experiment(self, rerun: Rerun) -> Decision:
        if self.answers.tonight is None or self.answers.baseline is None:
            decided = self._open("ab" if self.allowed.num_blocks else "")
            return replace(decided, rerun=rerun)
        alpha = self.allowed.software_alpha / max(self.answers.num_tested, 1)
        found = software_difference(self.answers.tonight, self.answers.baseline, alpha)
        if found is None:
            return replace(self._open(""), rerun=rerun)
        if found.p_value > alpha:
            return self._without_experiment(rerun, found)
        if found.size < self.allowed.least_change:
            return self._decided("pass", "too-small", rerun, found)
        return self._decided("drift", "software", rerun, found)

    def _without_experiment(self, rerun: Rerun, found: Difference | None = None) -> Decision:
        """Decide without a software cause: drift only if the loss lasts."""
        lost = lasting_loss(self.here, self.reference, self.allowed.lasting_alpha)
        if lost.holds and lost.size > self.allowed.least_change:
            return self._decided("drift", "lasting", rerun, found)
        unknown = self.software == "unavailable" or (self.software == "can-differ" and found is None)
        return self._decided("inconclusive", "unconfirmed" if unknown else "machine", rerun, found)

    def _open(self, needs: Literal["reruns", "ab", ""]) -> Decision:
        size = float(self.here[-1]) - self.reference.centre
        return Decision("inconclusive", "open-question", self.asks, needs, self.reference, size=size)

    def _decided(
        self,
        verdict: Literal["pass", "drift", "inconclusive"],
        reason: Reason,
        rerun: Rerun,
        found: Difference | None = None,
        reference: Reference | None = None,
    ) -> Decision:
        against = reference or self.reference
        size = rerun.mean - against.centre
        width = t_quantile(0.025, round(against.freedom)) * against.predicted()
        low, high = size - width, size + width
        if found is not None and reason in ("software", "too-small"):
            size, low, high = found.size, found.low, found.high
        dated = onset(self.here, against) if verdict == "drift" else None
        return Decision(
            verdict, reason, self.asks, "", against, dated, rerun, found, size, low, high, new=verdict == "drift"
        )
