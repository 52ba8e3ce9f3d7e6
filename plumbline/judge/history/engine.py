"""Decision engine: replay a metric's nights, and decide on the newest.

Statistics decide what is real, a person's limits what is worth a look. Only a decision moves the reference: a
reported regression, a proven gain, an accepted baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import (
    Answers,
    Decision,
    Detection,
    Onset,
    Past,
    Question,
    Reason,
    Software,
    Verdict,
    among_all,
    level_reference,
    nights_since,
    without_calls,
)
from plumbline.judge.history.detection import (
    detect,
    end_of_loss,
    is_ruled_out,
    is_shown,
    known_call,
    lasting,
    num_open_calls,
    onset,
    without_ruled_out,
)
from plumbline.judge.history.experiments import ask, judge_reruns, prove, seen_over
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.statistics.changepoints import ChangePoint
from plumbline.judge.statistics.samples import Values
from plumbline.schema import limits

_NO_ANSWERS = Answers()


def decide(
    past: Past, tonight: float, allowed: Allowed, answers: Answers = _NO_ANSWERS, *, software: Software = "can-differ"
) -> Decision:
    """Decide on tonight's value of one series; higher is worse.

    If a detector reports a regression, or nights show a gain, the decision requests reruns first, then an A/B; the
    caller runs them and decides again. Never raises on any value, and never passes a night without a finite one.
    """
    if not math.isfinite(tonight):
        return Decision("inconclusive", "missing", question=past.question)
    if answers.change is not None:
        return _by_whole_file(past, answers.change, allowed)
    num_calls = num_open_calls(past, tonight)
    if past.calls and num_calls == len(past.calls):
        seen = seen_over(past, tonight, allowed, answers, software)
        if isinstance(seen, Decision):
            return seen
        num_calls = seen
    left = without_ruled_out(without_calls(past, num_calls), tonight)
    decision = replace(
        _decided(left, tonight, allowed, answers, software), open_calls=num_calls if past.calls else None
    )
    if num_calls < len(past.calls) and not decision.new and not decision.needs:
        return replace(decision, onset=end_of_loss(past, tonight))
    return decision


def _decided(past: Past, tonight: float, allowed: Allowed, answers: Answers, software: Software) -> Decision:
    """Decide on a night, with the calls and the question that earlier nights left open."""
    known = known_call(past, tonight) if past.calls else None
    reference = level_reference(past)
    if reference is None:
        return known or Decision("inconclusive", "learning", question=past.question)
    here = nights_since(past, past.level, tonight)
    night = _Night(past, allowed.at(reference.centre), answers, software, here, reference)
    decision = night.by_nights(night.decision())
    dated = None if decision.onset is None else among_all(past, past.level, decision.onset)
    decision = replace(decision, onset=dated, question=night.open_question(decision))
    if known is None or decision.verdict == "drift" or (known.is_cleared and decision.verdict != "pass"):
        return decision
    if not decision.needs:
        return replace(known, question=decision.question)
    # What asks beside an open call is a second loss, or its end.
    return replace(decision, verdict=known.verdict, reason="open-call", onset=known.onset)


def _by_whole_file(past: Past, change: ChangePoint, allowed: Allowed) -> Decision:
    """Decide on a change that a whole file shows: a gain, a regression, or the end of one."""
    first = past.calls[0] if past.calls else None
    level = reference_of(past.values[past.level :], floor=past.floor, prior=past.prior, is_whole=True)
    before = first.before if first else level or Reference(change.before, past.floor, 1, 0.0)
    size, least = change.after - before.centre, allowed.at(before.centre).least_change
    verdict: Verdict = "drift" if size > least else "pass"
    reason: Reason = "lasting" if size > least else "improved" if size < -least else "quiet"
    dated = Onset(change.index, change.shape, size)
    return Decision(
        verdict, reason, reference=before, onset=dated, size=size, new=reason != "quiet", open_calls=0, lead=math.nan
    )


@dataclass(slots=True)
class _Night:
    """Data for tonight's decision. `here` has the level's finite nights and tonight."""

    past: Past
    allowed: Allowed
    answers: Answers
    software: Software
    here: Values
    reference: Reference

    def decision(self) -> Decision:
        """Decide on tonight alone, ignoring regressions open from earlier nights."""
        tested = int(np.isfinite(self.past.values[self.past.level : self.past.untested]).sum())
        detections = detect(self.here, tested, self.reference, self.allowed)
        # A growing reference has taken a creep in.
        begin = next((detection.begin for detection in detections if detection.begin is not None), 0)
        self.reference, over_anchor = self._before(begin) or self.reference, self._over_anchor()
        found, size = (*detections, *over_anchor), self._size()
        asked = Decision("inconclusive", "open-loss", found, reference=self.reference, size=size)
        worst = max(size, self._size(limits.LEAST_NIGHTS))
        is_within = self.allowed.margin is not None and worst <= self.allowed.least_change
        if not self.allowed.num_reruns:
            return self._unaided(asked, is_within=is_within)
        if detections and not over_anchor and is_within:
            return replace(asked, verdict="pass", reason="too-small", onset=onset(self.here, self.reference))
        has_ab = self.software == "can-differ" and self.allowed.num_blocks > 0
        open_loss = question.size if (question := self.past.question) and not question.is_cleared else None
        is_open = open_loss is not None and not is_ruled_out(open_loss, self.here[-1:], self.reference)
        return self._asked(asked, open_loss) if found or (is_open and has_ab) else self._passed()

    def _size(self, num: int = 1) -> float:
        """Return how far the newest nights' median is from the reference."""
        return float(np.median(self.here[-num:])) - self.reference.centre

    def _before(self, num: int) -> Reference | None:
        """Return the reference computed from the level's first `num` nights."""
        return reference_of(self.here[:num], floor=self.past.floor, prior=self.past.prior, is_whole=True)

    def _lasts(self, reference: Reference, *, is_cleared: bool = False) -> float:
        """Return a regression that lasts and exceeds its limit; otherwise 0."""
        lost = lasting(self.here, reference, self.allowed.lasting_alpha)
        return lost if lost > (self.allowed.drop if is_cleared else self.allowed.least_change) else 0.0

    def _unaided(self, asked: Decision, *, is_within: bool) -> Decision:
        """Decide without experiments: compare nights after a change with those before."""
        # A steady creep has no reference but its first nights.
        for first in (onset(self.here, self.reference).index, limits.FIRST_NIGHTS):
            before = self._before(first) or self.reference
            is_old = onset(self.here, before).index < len(self.here) - 2 * limits.ENOUGH_NIGHTS
            if is_old and self.answers.is_whole:
                continue  # so many nights after a change show it in the whole file
            if lost := self._lasts(before):
                return self._called(asked, "lasting", lost, before)
        # A creep asks for an experiment alone: nights show it, or the changes of level.
        is_open = any(detection.kind != "creep" for detection in asked.detections) and not is_within
        return asked if is_open else self._passed()

    def _over_anchor(self) -> tuple[Detection, ...]:
        """Detect a cumulative regression against the first accepted baseline."""
        anchor, limit = self.past.anchor, self.allowed.anchor_limit
        newest = nights_since(self.past, 0, float(self.here[-1]))[-limits.LEAST_NIGHTS :]
        if anchor is None or len(newest) < limits.LEAST_NIGHTS:
            return ()
        lost = float(np.median(newest)) - anchor.centre
        is_over = lost > limit and is_shown(newest, anchor, self.allowed.software_alpha)
        return (Detection("anchor", lost, limit),) if is_over else ()

    def _asked(self, asked: Decision, open_loss: float | None) -> Decision:
        """Decide on a suspected regression by its experiments."""
        anchor, over = (
            self.past.anchor,
            [detection.score for detection in asked.detections if detection.kind == "anchor"],
        )
        if anchor is not None and over:
            against = judge_reruns(self.answers.reruns or (), anchor)
            if against.holds:
                return self._called(replace(asked, rerun=against), "lasting", over[0], anchor)
        asked = ask(asked, self.reference, self.answers, self.allowed, self.software, self.past.lead, open_loss)
        if asked.reason != "software":
            return asked
        if (asked.size or 0.0) < self.allowed.least_change:
            return replace(asked, verdict="pass", reason="too-small")
        return self._called(asked, "software", asked.size or 0.0, self.reference)

    def _of_machine(self, decision: Decision) -> Decision:
        """Pass a hardware-caused regression within the limit; otherwise return `inconclusive`."""
        is_within = (decision.size or 0.0) <= self.allowed.tolerated
        return replace(decision, verdict="pass" if is_within else "inconclusive", reason="machine", is_cleared=True)

    def _called(self, asked: Decision, reason: Reason, size: float, reference: Reference) -> Decision:
        """Report a regression as drift, and update the software's known advantage."""
        lead = self.past.lead - size if reason == "software" else self.past.lead if asked.is_cleared else math.nan
        dated = replace(onset(self.here, reference), size=size)
        return replace(
            asked, verdict="drift", reason=reason, needs="", reference=reference, onset=dated,
            size=size if asked.low is None else asked.size, new=True, lead=lead,
        )  # fmt: skip

    def _passed(self) -> Decision:
        """Pass the night; an improvement that an A/B or the nights prove moves the reference."""
        quiet = Decision("pass", "quiet", reference=self.reference, size=self._size())
        fitted = onset(-self.here, self.reference.mirrored(), has_ramps=False)
        num, least = len(self.here) - fitted.index, self.allowed.least_change
        # Fewer nights are no reference: the luck of the first ones would ask about the next ones.
        is_gain = (
            not self.answers.is_whole
            and fitted.size > least
            and num >= limits.OWN_NIGHTS
            and not (self.past.question or self.past.calls)
        )
        # A growing reference has taken the gain in.
        before = self._before(fitted.index) if is_gain else None
        if before is None:
            return quiet
        has_ab = self.software == "can-differ" and self.allowed.num_blocks > 0
        alpha = self.allowed.lasting_alpha if has_ab else limits.RULED_OUT
        lasts = lasting(-self.here, before.mirrored(), alpha) > least
        asks = num in limits.GAIN_NIGHTS and has_ab
        if not lasts and not (asks and detect(-self.here, fitted.index, before.mirrored(), self.allowed)):
            return quiet
        dated = replace(fitted, size=-fitted.size)
        gain = Decision("pass", "improved", (), "", before, dated, size=dated.size, new=lasts, lead=self.past.lead)
        proven = prove(gain, before, self.answers, self.allowed, self.software)
        return proven if lasts or proven.new or proven.needs else quiet

    def by_nights(self, decision: Decision) -> Decision:
        """Decide an unresolved regression by the nights since: drift once significant."""
        question, is_answered = self.past.question, decision.reason in ("machine", "unconfirmed")
        if decision.verdict == "drift" or (question is None and not is_answered):
            return decision
        is_cleared, begin = _is_cleared(decision, question), question.asked + 1 if question else 0
        if is_cleared and decision.reason == "unconfirmed":
            decision = replace(decision, reason="machine", is_cleared=True)
        waits = decision.needs and len(nights_since(self.past, begin, self.here[-1])) < self.allowed.open_nights
        if not waits and (lost := self._lasts(self.reference, is_cleared=is_cleared)):
            known = decision if is_answered else replace(decision, low=None, high=None)
            return self._called(replace(known, is_cleared=is_cleared), "lasting", lost, self.reference)
        if decision.reason == "machine":
            is_gone = decision.rerun is None or not decision.rerun.holds
            return replace(decision, verdict="pass", reason="went-away") if is_gone else self._of_machine(decision)
        if question is None or decision.is_cleared or decision.reason not in ("quiet", "went-away"):
            return decision
        if not is_cleared:
            return replace(decision, verdict="inconclusive", reason="open-loss")
        return self._of_machine(replace(decision, size=self._size(limits.LEAST_NIGHTS)))

    def open_question(self, decision: Decision) -> Question | None:
        """Return the suspected regression that stays open after tonight."""
        past, question = self.past, self.past.question
        if decision.verdict == "drift" or (decision.reason == "went-away" and decision.is_cleared):
            return None
        if question is not None:
            return replace(question, is_cleared=_is_cleared(decision, question))
        if decision.reason == "improved" or not (decision.verdict == "inconclusive" or decision.is_cleared):
            return None
        dated = onset(self.here, self.reference)
        first = max(dated.index, 1 if past.prior else limits.LEAST_NIGHTS)
        since = among_all(past, past.level, replace(dated, index=first)).index
        return Question(since, len(past.values), max(dated.size, self._size()), decision.is_cleared)


def _is_cleared(decision: Decision, question: Question | None) -> bool:
    """Return whether an experiment has ruled out the software as cause; a later unclear one does not take it back."""
    return decision.is_cleared or (question is not None and question.is_cleared)
