"""The engine: one walk over the nights of a series, whose state is `Past` and whose events are decisions.

Statistics decide what is real, a person's limits what is worth a look. Only a decision moves the reference: a called
loss, a proven gain, an accepted baseline. The night, `plumbline history`, the report and the tests call `decide`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Call, Decision, Detection, Past, Question, Software, Verdict
from plumbline.judge.history.detection import detect, is_ruled_out, lasting, onset
from plumbline.judge.history.levels import by_levels
from plumbline.judge.history.reference import HUGE, Reference, reference_of
from plumbline.judge.history.tonight import Tonight
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
    return _Night(past, allowed, answers, software, min(max(tonight, -HUGE), HUGE)).decision()


@dataclass(slots=True)
class _Night(Tonight):
    """Everything that is known tonight."""

    tonight: float

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
        if over_anchor or (detections and not self.is_within_margin(here, reference)):
            decision = self.asked(here, reference, detections)
        elif detections:
            size = float(here[-1]) - reference.centre
            dated = onset(here, reference)
            decision = Decision("pass", "within-margin", detections, "", reference, dated, size=size)
        elif self._can_be_answered(here, reference):
            decision = self.asked(here, reference, ())
        else:
            decision = self.gain(here, reference) or Decision(
                "pass", "quiet", reference=reference, size=float(here[-1]) - reference.centre
            )
        if past.question is not None and decision.verdict != "drift":
            decision = self._while_open(decision, past.question, here, reference)
        decision = _with_index(decision, past.level, kept)
        if (
            known is not None
            and decision.verdict != "drift"
            and (known.verdict == "drift" or decision.verdict == "pass")
        ):
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

    def _can_be_answered(self, here: Values, reference: Reference) -> bool:
        """Return whether an experiment can answer an open loss, which tonight does not rule out by itself."""
        question = self.past.question
        if question is None or question.is_cleared or self.software != "can-differ" or not self.allowed.num_blocks:
            return False
        return not is_ruled_out(question.size, here[-1:], reference)

    def _while_open(self, decision: Decision, question: Question, here: Values, reference: Reference) -> Decision:
        """Decide while an earlier night's loss is open: it is drift once the nights show it, and never ages."""
        is_cleared = _is_cleared(decision, question)
        lost = lasting(here, reference, self.allowed.lasting_alpha)
        waits = decision.needs and len(self._since(question.asked + 1)) < self.allowed.open_nights
        if not waits and lost.holds and lost.size > (self.allowed.drop if is_cleared else self.allowed.least_change):
            asked = replace(decision, is_cleared=is_cleared, reference=reference, needs="", low=None, high=None)
            return self.called(asked, "lasting", onset(here, reference), lost.size)
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


def _reference_of(past: Past) -> Reference | None:
    """Return the reference of the level: nights from the start of an open loss on enter none."""
    question = past.question
    nights = past.values[past.level : question.since if question else None]
    nights = np.clip(nights[np.isfinite(nights)], -HUGE, HUGE)
    return reference_of(nights, floor=past.floor, prior=past.prior, is_whole=question is not None)


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
