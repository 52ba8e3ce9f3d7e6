"""The engine: one walk over the nights of a series, whose state is `Past` and whose events are decisions.

Statistics decide what is real, a person's limits what is worth a look. Only a decision moves the reference: a called
loss, a proven gain, an accepted baseline. The night, `plumbline history`, the report and the tests call `decide`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history import state
from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Decision, Detection, Past, Question, Reason, Software
from plumbline.judge.history.detection import detect, is_ruled_out, lasting, onset
from plumbline.judge.history.experiments import ask, judge_reruns, prove
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.schema import limits

Values = NDArray[np.float64]
_NO_ANSWERS = Answers()


def decide(
    past: Past, tonight: float, allowed: Allowed, answers: Answers = _NO_ANSWERS, *, software: Software = "can-differ"
) -> Decision:
    """Decide on tonight's value; higher is worse.

    If a detector reports a loss, or nights show a gain, the decision requests reruns first, then an A/B; the caller
    runs them and decides again. Never raises on short, constant, missing or non-finite values, and never passes a night
    without a value.
    """
    if not math.isfinite(tonight):
        return Decision("inconclusive", "missing", question=past.question)
    past = state.without_ruled_out(past, tonight)
    reference, known = state.level_reference(past), state.known_call(past, tonight)
    if reference is None:
        return known or Decision("inconclusive", "learning", question=past.question)
    night = _Night(past, allowed.at(reference.centre), answers, software, state.nights_since(past, past.level, tonight))
    decision = night.decision(reference)
    if past.question is not None and decision.verdict != "drift":
        decision = night.while_open(decision, past.question)
    decision = state.with_index(decision, past)
    is_known = known is not None and (known.verdict == "drift" or decision.verdict == "pass")
    if known is not None and is_known and decision.verdict != "drift":
        return replace(known, question=past.question)
    return replace(decision, question=night.open_question(decision))


@dataclass(slots=True)
class _Night:
    """Everything that is known tonight. `here` are the finite nights of the level, and tonight."""

    past: Past
    allowed: Allowed
    answers: Answers
    software: Software
    here: Values

    def decision(self, reference: Reference) -> Decision:
        """Decide on tonight, whatever an earlier night has left open."""
        past, here = self.past, self.here
        kept = np.isfinite(past.values)
        tested = int(kept[: past.untested].sum()) - int(kept[: past.level].sum())
        detections = detect(here, tested, reference, self.allowed)
        # A growing reference has taken a creep in.
        begin = min((detection.begin for detection in detections if detection.begin is not None), default=0)
        reference, over_anchor = self._before(begin) or reference, self._over_anchor()
        if not self.allowed.num_reruns:
            return self._unaided(reference, (*detections, *over_anchor))
        if detections and not over_anchor and self._is_within_margin(reference):
            size = float(here[-1]) - reference.centre
            return Decision("pass", "too-small", detections, "", reference, onset(here, reference), size=size)
        if detections or over_anchor or self._can_be_answered(reference):
            return self._asked(reference, (*detections, *over_anchor))
        return self._gain(reference) or Decision(
            "pass", "quiet", reference=reference, size=float(here[-1]) - reference.centre
        )

    def _before(self, num: int) -> Reference | None:
        """Return the reference of the level's first nights."""
        return reference_of(self.here[:num], floor=self.past.floor, prior=self.past.prior, is_whole=True)

    def _lasts(self, reference: Reference, *, is_cleared: bool = False) -> float | None:
        """Return a loss that lasts and counts: beyond the limit where the software is cleared."""
        lost = lasting(self.here, reference, self.allowed.lasting_alpha)
        limit = self.allowed.drop if is_cleared else self.allowed.least_change
        return lost if lost is not None and lost > limit else None

    def _unaided(self, reference: Reference, detections: tuple[Detection, ...]) -> Decision:
        """Decide without experiments, by the nights against those before the newest loss.

        A creep asks for an experiment alone: nights show it, or the changes of level.
        """
        size = float(self.here[-1]) - reference.centre
        asked = Decision("inconclusive", "open-loss", detections, "", reference, size=size)
        # A steady creep has no reference but its first nights.
        for first in (onset(self.here, reference).index, limits.FIRST_NIGHTS):
            before = self._before(first) or reference
            if (lost := self._lasts(before)) is not None:
                return self._called(replace(asked, reference=before), "lasting", lost)
        if any(detection.kind != "creep" for detection in detections) and not self._is_within_margin(reference):
            return asked
        return self._gain(reference) or Decision("pass", "quiet", reference=reference, size=size)

    def _is_within_margin(self, reference: Reference) -> bool:
        """Return whether tonight and the newest nights' median are within the margin."""
        worst = max(float(self.here[-1]), float(np.median(self.here[-limits.LEAST_NIGHTS :]))) - reference.centre
        return self.allowed.margin is not None and worst <= self.allowed.least_change

    def _over_anchor(self) -> tuple[Detection, ...]:
        """Detect a cumulative loss of the newest five nights beyond the anchor's limit."""
        anchor, limit = self.past.anchor, self.allowed.anchor_limit
        if anchor is None:
            return ()
        seen = state.nights_since(self.past, 0, float(self.here[-1]))
        lost = lasting(seen, anchor, self.allowed.software_alpha, ranked=False, windows=(limits.LEAST_NIGHTS,))
        return (Detection("anchor", lost, limit),) if lost is not None and lost > limit else ()

    def _can_be_answered(self, reference: Reference) -> bool:
        """Return whether an experiment can answer an open loss, which tonight does not rule out by itself."""
        question = self.past.question
        if question is None or question.is_cleared or self.software != "can-differ" or not self.allowed.num_blocks:
            return False
        return not is_ruled_out(question.size, self.here[-1:], reference)

    def _asked(self, reference: Reference, detections: tuple[Detection, ...]) -> Decision:
        """Decide on a suspected loss by its experiments."""
        question, here = self.past.question, self.here
        open_loss = question.size if question is not None and not question.is_cleared else None
        answer = ask(self.answers, reference, self.allowed, self.software, self.past.lead, open_loss)
        asked = Decision(
            "inconclusive", "open-loss", detections, answer.needs, reference, None, answer.rerun, answer.difference,
            size=float(here[-1]) - reference.centre, missing_blocks=answer.missing_blocks,
        )  # fmt: skip
        if answer.rerun is None:
            return asked
        anchor = self.past.anchor
        if anchor is not None and any(detection.kind == "anchor" for detection in detections):
            against = judge_reruns(self.answers.reruns or (), anchor, self.allowed.rerun_alpha)
            if against.holds:
                asked = replace(asked, needs="", reference=anchor, rerun=against, difference=None, missing_blocks=0)
                return self._called(asked, "lasting", against.mean - anchor.centre)
        size, width = answer.rerun.mean - reference.centre, reference.width()
        asked = replace(asked, size=size, low=size - width, high=size + width)
        if answer.says == "nothing":
            return replace(asked, size=answer.loss) if answer.loss else asked
        if answer.says == "software" and answer.difference is not None:
            shown = replace(asked, size=answer.difference.size, low=answer.difference.low, high=answer.difference.high)
            if answer.difference.size < self.allowed.least_change:
                return replace(shown, verdict="pass", reason="too-small")
            return self._called(shown, "software", answer.difference.size)
        return self._by_nights(asked, answer.says, reference)

    def _by_nights(self, asked: Decision, says: Reason, reference: Reference) -> Decision:
        """Decide without a software cause: drift if it lasts, and is beyond the limit where the software is cleared."""
        asked, rerun = replace(asked, is_cleared=says == "machine"), asked.rerun
        if says == "went-away":
            return replace(asked, verdict="pass", reason="went-away")
        if (lost := self._lasts(reference, is_cleared=asked.is_cleared)) is not None:
            return self._called(asked, "lasting", lost)
        if not asked.is_cleared:
            return replace(asked, reason="unconfirmed")
        if rerun is None or not rerun.holds:
            return replace(asked, verdict="pass", reason="went-away")
        is_within = rerun.mean - reference.centre <= self.allowed.tolerated
        return replace(asked, verdict="pass" if is_within else "inconclusive", reason="machine")

    def _called(self, asked: Decision, reason: Reason, size: float) -> Decision:
        """Call a loss; the software's lead is known where an A/B has measured it, or it has not changed."""
        lead = self.past.lead - size if reason == "software" else self.past.lead if asked.is_cleared else math.nan
        own = asked.size if reason == "software" or asked.low is not None else size
        dated = onset(self.here, _of(asked))
        return replace(asked, verdict="drift", reason=reason, onset=dated, size=own, new=True, lead=lead)

    def _gain(self, reference: Reference) -> Decision | None:
        """Return the decision on a gain that lasts, which moves the reference; `None` without one."""
        past = self.past
        if past.question is not None or past.call is not None:
            return None
        fitted = onset(-self.here, reference.mirrored())
        # Fewer nights are no reference: the luck of the first ones would ask about the next ones.
        if len(self.here) - fitted.index < limits.OWN_NIGHTS:
            return None
        # A growing reference has taken the gain in.
        before = self._before(fitted.index)
        gained = lasting(-self.here, before.mirrored(), self.allowed.lasting_alpha) if before is not None else None
        if before is None or gained is None or gained <= self.allowed.least_change:
            return None
        dated = replace(fitted, size=-fitted.size)
        proven = Decision("pass", "improved", (), "", before, dated, size=-gained, new=True, lead=past.lead)
        return prove(proven, before, self.answers, self.allowed, self.software)

    def while_open(self, decision: Decision, question: Question) -> Decision:
        """Decide while an earlier night's loss is open: it is drift once the nights show it, and never ages."""
        is_cleared, reference = _is_cleared(decision, question), _of(decision)
        lost = self._lasts(reference, is_cleared=is_cleared)
        num_fresh = len(state.nights_since(self.past, question.asked + 1, float(self.here[-1])))
        waits = decision.needs and num_fresh < self.allowed.open_nights
        if not waits and lost is not None:
            asked = replace(decision, is_cleared=is_cleared, needs="", low=None, high=None)
            return self._called(asked, "lasting", lost)
        if decision.reason not in ("quiet", "went-away") or decision.is_cleared:
            return decision
        if not is_cleared:
            return replace(decision, verdict="inconclusive", reason="open-loss")
        size = float(np.median(self.here[-limits.LEAST_NIGHTS :])) - reference.centre
        is_within = size <= self.allowed.tolerated
        decision = replace(decision, reason="machine", size=size, is_cleared=True)
        return replace(decision, verdict="pass" if is_within else "inconclusive")

    def open_question(self, decision: Decision) -> Question | None:
        """Return the loss that is open after tonight."""
        question, here = self.past.question, self.here
        if decision.verdict == "drift" or (decision.reason == "went-away" and decision.is_cleared):
            return None
        if question is not None:
            return replace(question, is_cleared=_is_cleared(decision, question))
        if decision.reason == "improved" or not (decision.verdict == "inconclusive" or decision.is_cleared):
            return None
        dated, places = onset(here, _of(decision)), state.night_indexes(self.past)
        first = min(max(dated.index, 1 if self.past.prior else limits.LEAST_NIGHTS), len(places) - 1)
        size = max(dated.size, float(here[-1]) - _of(decision).centre)
        return Question(int(places[first]), len(self.past.values), size, decision.is_cleared)


def _is_cleared(decision: Decision, question: Question) -> bool:
    """Return whether the software is cleared: by tonight's answer, else by the last one."""
    is_answered = decision.reason in ("open-loss", "software", "machine", "unconfirmed", "lasting")
    return decision.is_cleared if is_answered and not decision.needs else question.is_cleared


def _of(decision: Decision) -> Reference:
    assert decision.reference is not None  # noqa: S101 - a decision on a level has one
    return decision.reference
