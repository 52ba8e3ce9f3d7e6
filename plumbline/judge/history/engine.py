"""The engine: one walk over the nights of a series, whose state is `Past` and whose events are decisions.

Statistics decide what is real, a person's limits what is worth a look. Only a decision moves the reference: a called
loss, a proven gain, an accepted baseline. The night, `plumbline history`, the report and the tests call `decide`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import (
    Answers,
    Call,
    Decision,
    Detection,
    Onset,
    Past,
    Question,
    Reason,
    RerunTest,
    Software,
    Verdict,
)
from plumbline.judge.history.detection import detect, is_ruled_out, lasting, onset
from plumbline.judge.history.levels import by_levels
from plumbline.judge.history.paired import PairedTest, paired_test
from plumbline.judge.history.quantiles import normal_quantile, t_quantile
from plumbline.judge.history.reference import HUGE, Reference, reference_of
from plumbline.schema import limits

Values = NDArray[np.float64]
_NO_ANSWERS = Answers()


def decide(
    past: Past, tonight: float, allowed: Allowed, answers: Answers = _NO_ANSWERS, *, software: Software = "can-differ"
) -> Decision:
    """Decide on tonight's value; higher is worse.

    If a detector reports a loss, or nights show a gain, the decision requests reruns first, then an A/B. Never raises
    on short, constant, missing or non-finite values, and never passes a night without a value.
    """
    if not math.isfinite(tonight):
        return Decision("inconclusive", "missing", question=past.question)
    return _Night(past, min(max(tonight, -HUGE), HUGE), allowed, answers, software).decision()


@dataclass(slots=True)
class _Night:
    """Everything that is known tonight."""

    past: Past
    tonight: float
    allowed: Allowed
    answers: Answers
    software: Software

    def decision(self) -> Decision:
        past = self._after_ruled_out()
        kept = np.isfinite(past.values)
        here = self._since(past.level)
        reference, known = _reference_of(past), self._known()
        if reference is None:
            return known or Decision("inconclusive", "learning", question=past.question)
        self.allowed = self.allowed.at(reference.centre)
        if not self.allowed.num_reruns:
            return _with_index(by_levels(here, self.allowed, past.floor), past.level, kept)
        tested = int(kept[: past.untested].sum()) - int(kept[: past.level].sum())
        detections = detect(here, tested, reference, self.allowed)
        # A growing reference has taken a creep in.
        begin = min((detection.begin for detection in detections if detection.begin is not None), default=0)
        earlier = reference_of(here[:begin], floor=past.floor, prior=past.prior, is_whole=True) if begin else None
        reference, over_anchor = earlier or reference, self._over_anchor()
        detections = (*detections, *over_anchor)
        if over_anchor or (detections and not self._is_within_margin(here, reference)):
            decision = self._asked(here, reference, detections)
        elif detections:
            size = float(here[-1]) - reference.centre
            dated = onset(here, reference)
            decision = Decision("pass", "within-margin", detections, "", reference, dated, size=size)
        elif self._can_be_answered(here, reference):
            decision = self._asked(here, reference, ())
        else:
            decision = self._gain(here, reference) or Decision(
                "pass", "quiet", reference=reference, size=float(here[-1]) - reference.centre
            )
        if past.question is not None and decision.verdict != "drift":
            decision = self._while_open(decision, past.question, here, reference)
        decision = _with_index(decision, past.level, kept)
        if known is not None and decision.verdict != "drift" and (known.verdict == "drift" or decision.verdict == "pass"):
            return replace(known, question=past.question)
        return replace(decision, question=self._open_question(decision, here, kept))

    def _after_ruled_out(self) -> Past:
        """Drop a question that the nights since have ruled out."""
        past, reference = self.past, _reference_of(self.past)
        if past.question is not None and reference is not None:
            fresh = self._since(past.question.asked + 1)
            if is_ruled_out(past.question.size, fresh, reference, is_cleared=past.question.is_cleared):
                self.past = replace(past, question=None, untested=len(past.values))
        return self.past

    def _since(self, place: int) -> Values:
        """Return the finite nights since one, and tonight."""
        values = self.past.values[place:]
        return np.append(np.clip(values[np.isfinite(values)], -HUGE, HUGE), self.tonight)

    def _known(self) -> Decision | None:
        """Return the open call's decision until the newest nights rule out half of its loss.

        A loss that is not the software's alerts once: it is known then, and its nights pass.
        """
        past, call = self.past, self.past.call
        if call is None:
            return None
        before = replace(past.prior or Reference(0.0, past.floor, limits.ENOUGH_NIGHTS, 0.0), centre=call.centre)
        if is_ruled_out(call.size, self._since(call.since), before, is_cleared=True):
            return None
        seen = self._since(call.level)
        size = float(np.median(seen[-limits.SIDE_NIGHTS :])) - call.centre
        # Dated again: every night since says more about the first one.
        dated = onset(seen, before)
        verdict: Verdict = "pass" if call.is_cleared else "drift"
        known = Decision(verdict, "open-call", onset=dated, size=size, is_cleared=call.is_cleared)
        return _with_index(known, call.level, np.isfinite(past.values))

    def _over_anchor(self) -> tuple[Detection, ...]:
        """Detect a cumulative loss of the newest five nights beyond the anchor's limit."""
        anchor = self.past.anchor
        if anchor is None:
            return ()
        seen = self._since(0)
        windows = (limits.LEAST_NIGHTS,)
        lost = lasting(seen, anchor, self.allowed.software_alpha, ranked=False, windows=windows)
        is_over = lost.holds and lost.size > self.allowed.anchor_limit
        return (Detection("anchor", lost.size, self.allowed.anchor_limit),) if is_over else ()

    def _is_within_margin(self, here: Values, reference: Reference) -> bool:
        recent = float(np.median(here[-limits.LEAST_NIGHTS :]))
        worst = max(float(here[-1]), recent) - reference.centre
        return self.allowed.margin is not None and worst <= self.allowed.least_change

    def _can_be_answered(self, here: Values, reference: Reference) -> bool:
        """Return whether an experiment can answer an open loss, which tonight does not rule out by itself."""
        question = self.past.question
        if question is None or question.is_cleared or self.software != "can-differ" or not self.allowed.num_blocks:
            return False
        return not is_ruled_out(question.size, here[-1:], reference)

    def _asked(self, here: Values, reference: Reference, detections: tuple[Detection, ...]) -> Decision:
        """Decide on a suspected loss, by the cheapest experiments first."""
        size = float(here[-1]) - reference.centre
        reason: Reason = "open-question" if detections else "open-loss"
        asked = Decision("inconclusive", reason, detections, "", reference, size=size)
        if self.answers.reruns is None:
            return replace(asked, needs="reruns")
        alpha, anchor = self.allowed.rerun_alpha, self.past.anchor
        rerun = judge_reruns(self.answers.reruns, reference, alpha)
        if not math.isfinite(rerun.z):
            return asked
        if anchor is not None and any(detection.kind == "anchor" for detection in detections):
            against = judge_reruns(self.answers.reruns, anchor, alpha)
            if against.holds:
                asked = replace(asked, reference=anchor, rerun=against)
                return self._called(asked, "anchor", onset(here, anchor), against.mean - anchor.centre)
        question = self.past.question
        is_open = question is not None and not question.is_cleared
        asked = _with_interval(replace(asked, rerun=rerun), rerun.mean - reference.centre, reference)
        if self.software == "can-differ" and (rerun.holds or is_open):
            loss = question.size if question is not None and is_open and not rerun.holds else rerun.mean - reference.centre
            return self._by_ab(asked, loss, here)
        if not rerun.holds:
            return replace(asked, verdict="pass", reason="went-away")
        return self._by_nights(asked, here, "machine" if self.software == "equal" else "unconfirmed")

    def _by_ab(self, asked: Decision, loss: float, here: Values) -> Decision:
        """Decide by the interleaved A/B whether the software causes the loss."""
        if self.answers.tonight is None or self.answers.baseline is None:
            return replace(asked, reason="open-question", needs="ab" if self.allowed.num_blocks else "", size=loss)
        # The level's software is better than the baseline's by its lead.
        lead = self.past.lead if math.isfinite(self.past.lead) else 0.0
        difference = paired_test(self.answers.tonight, self.answers.baseline - lead, limits.ALPHA / 2)
        if difference is None:
            return replace(asked, reason="open-question")
        alpha, asked = self.allowed.ab_alpha(self.answers.num_tested), replace(asked, difference=difference)
        if difference.p_value <= alpha:
            shown = replace(asked, size=difference.size, low=difference.low, high=difference.high)
            if difference.size < self.allowed.least_change:
                return replace(shown, verdict="pass", reason="too-small")
            return self._called(shown, "software", onset(here, _of(asked)), difference.size)
        half = max(loss / 2, self.allowed.least_change)
        if math.isfinite(self.past.lead) and difference.rules_out(half, limits.ALPHA / 2):
            return self._by_nights(asked, here, "machine")
        missing = difference.missing_blocks(loss, alpha)
        return replace(self._by_nights(asked, here, "undecided"), missing_blocks=missing)

    def _by_nights(self, asked: Decision, here: Values, reason: Literal["machine", "unconfirmed", "undecided"]) -> Decision:
        """Decide without a software cause: drift if it lasts, and is beyond the limit where the software is cleared."""
        is_cleared, reference = reason == "machine", _of(asked)
        lost = lasting(here, reference, self.allowed.lasting_alpha)
        if lost.holds and lost.size > (self.allowed.drop if is_cleared else self.allowed.least_change):
            return self._called(replace(asked, is_cleared=is_cleared), "lasting", onset(here, reference), lost.size)
        if not is_cleared:
            return replace(asked, reason=reason)
        asked = replace(asked, is_cleared=True)
        rerun = asked.rerun
        if rerun is None or not rerun.holds:
            return replace(asked, verdict="pass", reason="went-away")
        is_within = rerun.mean - reference.centre <= self.allowed.tolerated
        return replace(asked, verdict="pass" if is_within else "inconclusive", reason="machine")

    def _called(self, asked: Decision, reason: Reason, dated: Onset, size: float) -> Decision:
        """Call a loss; the software's lead is known where an A/B has measured it, or it has not changed."""
        lead = self.past.lead - size if reason == "software" else self.past.lead if asked.is_cleared else math.nan
        own = asked.size if reason == "software" or asked.low is not None else size
        return replace(asked, verdict="drift", reason=reason, onset=dated, size=own, new=True, lead=lead)

    def _gain(self, here: Values, reference: Reference) -> Decision | None:
        """Return the decision on a gain that lasts; `None` without one.

        A proven gain moves the reference. An A/B says whether the software's lead grows by it; where none can be run,
        the lead is unknown afterwards, and no A/B clears the software of a later loss.
        """
        past, better = self.past, -here
        fitted = onset(better, reference.mirrored())
        # Fewer nights are no reference: the luck of the first ones would ask about the next ones.
        if past.question or past.call or len(here) - fitted.index < limits.OWN_NIGHTS:
            return None
        # A growing reference has taken the gain in.
        before = reference_of(here[: fitted.index], floor=past.floor, prior=past.prior, is_whole=True)
        if before is None:
            return None
        reference = before
        gained = lasting(better, reference.mirrored(), self.allowed.lasting_alpha)
        if not gained.holds or gained.size <= self.allowed.least_change:
            return None
        dated = replace(fitted, size=-fitted.size)
        proven = Decision("pass", "improved", (), "", reference, dated, size=-gained.size, new=True, lead=self.past.lead)
        if self.software == "equal":
            return replace(proven, is_cleared=True)
        if self.software == "unavailable" or not self.allowed.num_blocks:
            return replace(proven, lead=math.nan)
        open_ = replace(proven, new=False)
        if self.answers.reruns is None:
            return replace(open_, needs="reruns")
        mirrored = tuple(-value for value in self.answers.reruns)
        rerun = judge_reruns(mirrored, reference.mirrored(), self.allowed.rerun_alpha)
        if not rerun.holds:
            return open_
        open_ = replace(open_, rerun=rerun)
        if self.answers.tonight is None or self.answers.baseline is None:
            return replace(open_, needs="ab")
        lead = self.past.lead if math.isfinite(self.past.lead) else 0.0
        difference = paired_test(-self.answers.tonight, lead - self.answers.baseline, limits.ALPHA / 2)
        if difference is None:
            return open_
        decided = replace(proven, rerun=rerun, difference=difference)
        if difference.p_value <= self.allowed.ab_alpha(self.answers.num_tested):
            return replace(decided, lead=lead + difference.size)
        half = max(gained.size / 2, self.allowed.least_change)
        return replace(decided, is_cleared=True) if difference.rules_out(half, limits.ALPHA / 2) else open_

    def _while_open(self, decision: Decision, question: Question, here: Values, reference: Reference) -> Decision:
        """Decide while an earlier night's loss is open: it is drift once the nights show it, and never ages."""
        is_cleared = _is_cleared(decision, question)
        lost = lasting(here, reference, self.allowed.lasting_alpha)
        waits = decision.needs and len(self._since(question.asked + 1)) < self.allowed.open_nights
        if not waits and lost.holds and lost.size > (self.allowed.drop if is_cleared else self.allowed.least_change):
            asked = replace(decision, is_cleared=is_cleared, reference=reference, needs="", low=None, high=None)
            return self._called(asked, "lasting", onset(here, reference), lost.size)
        if decision.reason not in ("quiet", "went-away") or decision.is_cleared:
            return decision
        if not is_cleared:
            return replace(decision, verdict="inconclusive", reason="open-loss")
        size = float(np.median(here[-min(len(here), limits.LEAST_NIGHTS) :])) - reference.centre
        verdict: Verdict = "pass" if size <= self.allowed.tolerated else "inconclusive"
        return replace(decision, verdict=verdict, reason="machine", size=size, is_cleared=True)

    def _open_question(self, decision: Decision, here: Values, kept: NDArray[np.bool_]) -> Question | None:
        """Return the loss that is open after tonight."""
        past = self.past
        if decision.verdict == "drift" or (decision.reason == "went-away" and decision.is_cleared):
            return None
        if past.question is not None:
            return replace(past.question, is_cleared=_is_cleared(decision, past.question))
        if decision.reference is None or decision.reason == "improved":
            return None
        if not (decision.verdict == "inconclusive" or decision.is_cleared):
            return None
        dated = onset(here, decision.reference)
        places = _places(past.level, kept)
        first = min(max(dated.index, 1 if past.prior else limits.LEAST_NIGHTS), len(places) - 1)
        size = max(dated.size, float(here[-1]) - decision.reference.centre)
        return Question(int(places[first]), len(kept), size, decision.is_cleared)


def advance(past: Past, tonight: float, decision: Decision) -> Past:
    """Return the state after tonight's event."""
    num = len(past.values)
    asked = decision.question.asked if decision.question else None
    is_new = past.question is not None and asked != past.question.asked
    untested = num if is_new else past.untested
    after = replace(past, values=np.append(past.values, tonight), untested=untested, question=decision.question)
    if decision.new and decision.onset is not None and decision.reference is not None:
        since, size = min(decision.onset.index, num), decision.onset.size
        if decision.reason == "improved":
            return moved(after, since, lead=decision.lead, call=None)
        call = Call(since, decision.reference.centre, max(size, 0.0), past.level, decision.is_cleared, past.lead)
        if past.call is not None:
            # The earlier loss is still open: its level is no reference from which to recover.
            call = replace(past.call, since=since, is_cleared=decision.is_cleared)
        return moved(after, level_of(since, num, decision.onset.shape), lead=decision.lead, call=call)
    if has_recovered(past, decision):
        level, lead = (past.call.level, past.call.lead) if past.call else (past.level, past.lead)
        return replace(after, level=level, lead=lead, untested=num + 1, call=None)
    return replace(after, untested=num + 1) if decision.reason == "machine" else after


def level_of(since: int, tonight: int, shape: str) -> int:
    """Return where the level of a called loss begins: that of a creep is where it has come to."""
    return max(since, tonight + 1 - limits.LEAST_NIGHTS) if shape == "creep" else since


def moved(past: Past, since: int, *, lead: float, call: Call | None) -> Past:
    """Return the state with a level that begins at `since`; the level before lends its spread."""
    prior = reference_of(past.values[past.level : since], floor=past.floor, prior=past.prior, is_whole=True)
    return replace(past, level=since, untested=since, lead=lead, call=call, question=None, prior=prior or past.prior)


def has_recovered(past: Past, decision: Decision) -> bool:
    """Return whether tonight ends an open loss."""
    was_open = past.call is not None or past.question is not None
    return was_open and decision.verdict == "pass" and decision.question is None and decision.reason != "open-call"


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


def _reference_of(past: Past) -> Reference | None:
    """Return the reference of the level: nights from the start of an open loss on enter none."""
    question = past.question
    nights = past.values[past.level : question.since if question else None]
    nights = np.clip(nights[np.isfinite(nights)], -HUGE, HUGE)
    return reference_of(nights, floor=past.floor, prior=past.prior, is_whole=question is not None)


def _of(decision: Decision) -> Reference:
    assert decision.reference is not None  # noqa: S101 - a suspected loss has one
    return decision.reference


def _with_interval(decision: Decision, size: float, reference: Reference) -> Decision:
    width = t_quantile(limits.ALPHA / 2, round(reference.freedom)) * reference.predicted()
    return replace(decision, size=size, low=size - width, high=size + width)


def _is_cleared(decision: Decision, question: Question) -> bool:
    """Return whether the software is cleared: by tonight's answer, else by the last one."""
    is_answered = decision.reason in ("open-question", "software", "machine", "undecided", "unconfirmed", "lasting")
    return decision.is_cleared if is_answered and not decision.needs else question.is_cleared


def _places(level: int, kept: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the indexes of the level's nights among all nights, with missing values."""
    places = np.append(np.flatnonzero(kept), len(kept))
    return np.asarray(places[places >= level])


def _with_index(decision: Decision, level: int, kept: NDArray[np.bool_]) -> Decision:
    """Count the onset's index among all nights, including missing values."""
    if decision.onset is None:
        return decision
    places = _places(level, kept)
    index = int(places[min(decision.onset.index, len(places) - 1)])
    return replace(decision, onset=replace(decision.onset, index=index))
