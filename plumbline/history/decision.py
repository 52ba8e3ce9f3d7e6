"""Decision engine for one series and one night.

Input: the series' past, tonight's value and the limits; output: one typed decision. The night, `plumbline history`, the
report, the simulator and the tests all call `decide`. Where a suspected loss needs an experiment, the decision names
it; the caller runs it and calls `decide` again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.history.answers import RerunTest, judge_reruns
from plumbline.history.dating import Onset, onset
from plumbline.history.detectors import Detection, detect
from plumbline.history.lasting import Lasting, lasting_loss
from plumbline.history.limits import Allowed
from plumbline.history.paired import PairedTest, paired_test
from plumbline.history.quantiles import t_quantile
from plumbline.history.questions import Question, is_ruled_out, is_shown, overdue_loss
from plumbline.history.reference import ENOUGH, HUGE, LEAST, Reference, reference_of

__all__ = ["Answers", "Call", "Decision", "Past", "Reason", "Software", "advance", "decide"]

Values = NDArray[np.float64]
_NEWEST = 5
"""Number of nights whose median has to be within the margin, as a loss of five nights is called."""
_INTERVAL = 0.025
"""Level on each side at which an A/B rules out half of the loss. Half, as chance enlarges a loss that is seen."""


Reason = Literal[
    "quiet",  # no detector reports a loss
    "learning",  # too few nights for a reference
    "missing",  # tonight has no finite value
    "open-question",  # an experiment is needed and has not been answered
    "too-soon",  # too few nights show it, and no experiment can be run
    "went-away",  # the reruns do not show it
    "software",  # the A/B shows it
    "machine",  # the reruns show it, and it is not the software: it passes within the limit
    "undecided",  # the reruns show it, and the A/B has too few blocks to show or rule out the software
    "unconfirmed",  # the reruns show it, and the baseline's environment cannot be built for an A/B
    "open-loss",  # no detector reports the loss of an earlier night, and nothing has ruled it out
    "slow-machine",  # the nights since a machine's slow night show that it stays slow
    "lasting",  # the loss lasts, and no experiment names the software
    "anchor",  # the cumulative loss against the first acceptance is over its limit
    "too-small",  # confirmed, and below the least change that counts
    "within-margin",  # a change within the metric's margin, which new software makes by chance
    "improved",  # lastingly better than the reference
    "open-call",  # reported on an earlier night, and still open
]
Software = Literal["can-differ", "equal", "unavailable"]
"""Whether the software may differ from the baseline's; `unavailable`: it may, but the baseline's cannot be rebuilt."""


_ANSWERS = frozenset({"open-question", "software", "machine", "undecided", "unconfirmed", "lasting"})
"""Reasons of a night with a question about the software."""


@dataclass(frozen=True, slots=True)
class Call:
    """Loss that was called on an earlier night, still open."""

    since: int
    centre: float
    size: float
    level: int
    """Start of the level before, which returns after a recovery."""
    is_cleared: bool = False
    """Whether the loss is not the software's."""


@dataclass(frozen=True, slots=True)
class Past:
    """Earlier nights of one comparable series.

    Higher values are worse; `nan` means that a night has no value. `level` is where the present level begins: a
    boundary of the segment, or a loss that was called. `cusum_start` is the night after the newest one for which
    experiments showed no loss of the software, or nights ruled it out. `anchor` is the reference of the first
    acceptance.
    """

    values: Values
    level: int = 0
    cusum_start: int = 0
    floor: float = 1e-3
    anchor: Reference | None = None
    call: Call | None = None
    question: Question | None = None
    prior: Reference | None = None
    """Reference of the previous level, whose spread is used until this level has its own."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Results of tonight's experiments so far.

    They are in the unit of the series; `None` means not run.
    """

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
    detections: tuple[Detection, ...] = ()
    needs: Literal["reruns", "ab", ""] = ""
    reference: Reference | None = None
    onset: Onset | None = None
    rerun: RerunTest | None = None
    difference: PairedTest | None = None
    size: float | None = None
    low: float | None = None
    high: float | None = None
    new: bool = field(default=False)
    """Whether the loss was called tonight, not on an earlier night."""
    question: Question | None = None
    """Loss that is open after tonight."""
    is_cleared: bool = False
    """Whether the loss is not the software's: it is equal, or an A/B rules it out."""
    missing_blocks: int = 0
    """Number of blocks that the A/B lacks to show or rule out the loss."""

    @property
    def noise(self) -> float:
        """Return the SD of tonight's reruns in units of their loss."""
        loss = self.rerun.mean - self.reference.centre if self.rerun and self.reference else 0.0
        return self.rerun.spread / loss if self.rerun and loss > 0 else 0.0


def decide(
    past: Past,
    tonight: float,
    allowed: Allowed,
    answers: Answers = Answers(),
    *,
    software: Software = "can-differ",
) -> Decision:
    """Decide on tonight's value; higher is worse.

    If a detector reports a loss, the decision requests reruns first, then an A/B. Never raises on short, constant,
    missing or non-finite values, and never passes a night without a value.
    """
    if not math.isfinite(tonight):
        return Decision("inconclusive", "missing", question=past.question)
    kept = np.isfinite(past.values)
    values = np.clip(past.values[kept], -HUGE, HUGE)
    tonight = min(max(tonight, -HUGE), HUGE)
    level = int(kept[: past.level].sum())
    reference = reference_of(values[level : _end(past, kept)], floor=past.floor, prior=past.prior)
    if past.question is not None and reference is not None:
        fresh = np.append(values[int(kept[: past.question.asked + 1].sum()) :], tonight)
        if is_ruled_out(past.question.size, fresh, reference):
            past = replace(past, question=None, cusum_start=len(past.values))
            reference = reference_of(values[level:], floor=past.floor, prior=past.prior)
    open_call = _open_call(past, values, tonight, kept)
    if reference is None:
        return open_call or Decision("inconclusive", "learning", question=past.question)
    here = np.append(values[level:], tonight)
    allowed = allowed.at(reference.centre)
    detections = detect(here, int(kept[: past.cusum_start].sum()) - level, reference, allowed)
    over_anchor = _over_anchor(past, values, tonight, allowed)
    if over_anchor is not None:
        detections = (*detections, over_anchor)
    if detections:
        suspected = _SuspectedLoss(here, reference, detections, allowed, answers, software, past)
        within = suspected.within_margin() if allowed.margin is not None and over_anchor is None else None
        decision = within or suspected.decision()
    else:
        decision = _quiet(here, reference, allowed)
    if past.question is not None and decision.verdict != "drift":
        num_fresh = len(values) - int(kept[: past.question.asked + 1].sum()) + 1
        decision = _while_open(decision, past.question, here, reference, num_fresh=num_fresh, allowed=allowed)
    decision = _with_index(decision, past.level, kept)
    if open_call is not None and decision.verdict != "drift":
        return open_call
    return replace(decision, question=_open_question(past, decision, here, kept)) if past.call is None else decision


def advance(past: Past, tonight: float, decision: Decision) -> Past:
    """Return the past of the next night.

    It contains tonight's value, calls, questions and answers.
    """
    num = len(past.values)
    was_open = past.call is not None or past.question is not None
    asked = decision.question.asked if decision.question else None
    is_new = past.question is not None and asked != past.question.asked
    cusum_start = num if is_new else past.cusum_start
    past = replace(past, values=np.append(past.values, tonight), cusum_start=cusum_start, question=decision.question)
    if decision.new and decision.onset is not None and decision.reference is not None:
        since = min(decision.onset.index, num)
        size = max(decision.onset.size, 0.0)
        call = Call(since, decision.reference.centre, size, past.level, decision.is_cleared)
        return replace(past, level=since, cusum_start=since, call=call, prior=decision.reference)
    if was_open and decision.verdict == "pass" and decision.question is None:
        level = past.call.level if past.call else past.level
        return replace(past, level=level, cusum_start=num + 1, call=None)
    if decision.reason == "machine":
        return replace(past, cusum_start=num + 1)
    return past


def _end(past: Past, kept: NDArray[np.bool_]) -> int:
    """Return the end of the nights of the reference."""
    return int(kept[: past.question.since if past.question else None].sum())


def _while_open(
    decision: Decision, question: Question, here: Values, reference: Reference, *, num_fresh: int, allowed: Allowed
) -> Decision:
    """Decide while an earlier night's loss is open: a night passes that rules it out, and an overdue loss is drift."""
    if num_fresh >= allowed.open_nights:
        lost = overdue_loss(here, num_fresh, reference, allowed.lasting_alpha)
        if lost.holds and lost.size > allowed.least_change:
            dated = onset(here, reference)
            cleared = _cleared_by(decision, question)
            called = replace(decision, verdict="drift", reason="lasting", onset=dated, size=lost.size, new=True)
            return replace(called, is_cleared=cleared)
    if question.is_cleared:
        is_standing = decision.verdict == "pass" and is_shown(here, num_fresh, reference)
        return replace(decision, verdict="inconclusive", reason="slow-machine") if is_standing else decision
    is_silent = decision.reason in ("quiet", "went-away")
    if not is_silent or is_ruled_out(question.size, here[-1:], reference):
        return decision
    return replace(decision, verdict="inconclusive", reason="open-loss")


def _open_question(past: Past, decision: Decision, here: Values, kept: NDArray[np.bool_]) -> Question | None:
    """Return the loss that is open after tonight."""
    if decision.verdict == "drift":
        return None
    if past.question is not None:
        return replace(past.question, is_cleared=_cleared_by(decision, past.question))
    if not (decision.verdict == "inconclusive" or decision.is_cleared) or decision.reference is None:
        return None
    dated = onset(here, decision.reference)
    places = np.append(np.flatnonzero(kept), len(kept))
    places = places[places >= past.level]
    first = min(max(dated.index, 1 if past.prior else LEAST), len(places) - 1)
    size = max(dated.size, float(here[-1]) - decision.reference.centre)
    return Question(int(places[first]), len(kept), size, decision.is_cleared)


def _cleared_by(decision: Decision, question: Question) -> bool:
    """Return whether the software is cleared: by tonight's answer, else by the last one."""
    return decision.is_cleared if decision.reason in _ANSWERS else question.is_cleared


def _with_index(decision: Decision, level: int, kept: NDArray[np.bool_]) -> Decision:
    """Count the onset's index among all nights, including missing values."""
    if decision.onset is None:
        return decision
    places = np.append(np.flatnonzero(kept), len(kept))
    places = places[places >= level]
    moved = Onset(int(places[min(decision.onset.index, len(places) - 1)]), decision.onset.shape, decision.onset.size)
    return replace(decision, onset=moved)


def _open_call(past: Past, values: Values, tonight: float, kept: NDArray[np.bool_]) -> Decision | None:
    """Return the open call's decision until the newest nights rule out half of its loss."""
    if past.call is None:
        return None
    call, seen = past.call, np.append(values, tonight)
    before = past.prior or Reference(call.centre, past.floor, ENOUGH, 0.0)
    if is_ruled_out(call.size, seen[-5:], replace(before, centre=call.centre)):
        return None
    level = int(kept[: call.level].sum())
    # Dated again: every night since says more about the first one.
    dated = onset(seen[level:], replace(before, centre=call.centre))
    size = float(np.median(seen[-3:])) - call.centre
    return _with_index(
        Decision("drift", "open-call", onset=dated, size=size, is_cleared=call.is_cleared), call.level, kept
    )


def _quiet(here: Values, reference: Reference, allowed: Allowed) -> Decision:
    mirrored = _lasting(-here, replace(reference, centre=-reference.centre), allowed)
    improved = mirrored.holds and mirrored.size > allowed.least_change
    size = -mirrored.size if improved else float(here[-1]) - reference.centre
    return Decision("pass", "improved" if improved else "quiet", reference=reference, size=size)


def _lasting(here: Values, reference: Reference, allowed: Allowed) -> Lasting:
    return lasting_loss(here, reference, allowed.lasting_alpha, lengths=allowed.lasting_nights)


def _over_anchor(past: Past, values: Values, tonight: float, allowed: Allowed) -> Detection | None:
    """Detect a cumulative loss beyond the anchor's limit.

    The median of the newest five nights counts.
    """
    if past.anchor is None:
        return None
    seen = np.append(values, tonight)
    lost = lasting_loss(seen, past.anchor, allowed.software_alpha, ranked=False, lengths=allowed.lasting_nights)
    if lost.holds and lost.size > allowed.anchor_limit:
        return Detection("anchor", lost.size, allowed.anchor_limit)
    return None


@dataclass(frozen=True, slots=True)
class _SuspectedLoss:
    """Loss reported by detectors, with tonight's answers so far."""

    here: Values
    reference: Reference
    detections: tuple[Detection, ...]
    allowed: Allowed
    answers: Answers
    software: Software
    past: Past

    def within_margin(self) -> Decision | None:
        """Pass without experiments if tonight and the newest nights' median are within the margin."""
        size = float(self.here[-1]) - self.reference.centre
        recent = float(np.median(self.here[-_NEWEST:])) - self.reference.centre
        if max(size, recent) > self.allowed.least_change:
            return None
        dated = onset(self.here, self.reference)
        return Decision("pass", "within-margin", self.detections, "", self.reference, dated, size=size)

    def decision(self) -> Decision:
        """Decide by the cheapest experiments first."""
        if self.answers.reruns is None:
            return self._open("reruns") if self.allowed.num_reruns else self._by_nights()
        rerun = judge_reruns(self.answers.reruns, self.reference, self.allowed.rerun_alpha)
        if not math.isfinite(rerun.z):
            return self._open("")
        if self.past.anchor is not None and any(detection.kind == "anchor" for detection in self.detections):
            against = judge_reruns(self.answers.reruns, self.past.anchor, self.allowed.rerun_alpha)
            if against.holds:
                return self._decided("drift", "anchor", against, reference=self.past.anchor)
        if not rerun.holds:
            return self._decided("pass", "went-away", rerun)
        if self.software == "can-differ":
            return self._by_experiment(rerun)
        return self._without_software(rerun)

    def _by_nights(self) -> Decision:
        """Decide where no experiment can be run."""
        lost = _lasting(self.here, self.reference, self.allowed)
        if not lost.holds or lost.size <= self.allowed.least_change:
            return replace(self._open(""), reason="too-soon")
        dated = onset(self.here, self.reference)
        return replace(self._open(""), verdict="drift", reason="lasting", onset=dated, size=lost.size, new=True)

    def _by_experiment(self, rerun: RerunTest) -> Decision:
        if self.answers.tonight is None or self.answers.baseline is None:
            decided = self._open("ab" if self.allowed.num_blocks else "")
            return replace(decided, rerun=rerun)
        difference = paired_test(self.answers.tonight, self.answers.baseline, _INTERVAL)
        if difference is None:
            return replace(self._open(""), rerun=rerun)
        alpha, half = self.allowed.ab_alpha(self.answers.num_tested), (rerun.mean - self.reference.centre) / 2
        if difference.p_value > alpha:
            if difference.rules_out(max(half, self.allowed.least_change), _INTERVAL):
                return self._without_software(rerun, difference)
            missing = difference.missing_blocks(2 * half, alpha)
            return replace(self._without_software(rerun, difference, undecided=True), missing_blocks=missing)
        if difference.size < self.allowed.least_change:
            return self._decided("pass", "too-small", rerun, difference)
        return self._decided("drift", "software", rerun, difference)

    def _without_software(
        self, rerun: RerunTest, difference: PairedTest | None = None, *, undecided: bool = False
    ) -> Decision:
        """Decide without a software cause: drift only if it lasts."""
        lost = _lasting(self.here, self.reference, self.allowed)
        is_cleared = self.software == "equal" or (difference is not None and not undecided)
        if lost.holds and lost.size > self.allowed.least_change:
            return replace(self._decided("drift", "lasting", rerun, difference), is_cleared=is_cleared)
        if undecided:
            return self._decided("inconclusive", "undecided", rerun, difference)
        if not is_cleared:
            return self._decided("inconclusive", "unconfirmed", rerun, difference)
        # A slow night of the machine is no person's work within the team's limit, and is called once it lasts.
        is_tolerated = rerun.mean - self.reference.centre <= self.allowed.drop
        verdict: Literal["pass", "inconclusive"] = "pass" if is_tolerated else "inconclusive"
        return replace(self._decided(verdict, "machine", rerun, difference), is_cleared=True)

    def _open(self, needs: Literal["reruns", "ab", ""]) -> Decision:
        size = float(self.here[-1]) - self.reference.centre
        return Decision("inconclusive", "open-question", self.detections, needs, self.reference, size=size)

    def _decided(
        self,
        verdict: Literal["pass", "drift", "inconclusive"],
        reason: Reason,
        rerun: RerunTest,
        difference: PairedTest | None = None,
        reference: Reference | None = None,
    ) -> Decision:
        against = reference or self.reference
        size = rerun.mean - against.centre
        width = t_quantile(0.025, round(against.freedom)) * against.predicted()
        low, high = size - width, size + width
        if difference is not None and reason in ("software", "too-small"):
            size, low, high = difference.size, difference.low, difference.high
        dated = onset(self.here, against) if verdict == "drift" else None
        return Decision(
            verdict,
            reason,
            self.detections,
            "",
            against,
            dated,
            rerun,
            difference,
            size,
            low,
            high,
            new=verdict == "drift",
        )
