"""State of a series from night to night: what each decision makes of its level, its open loss and its call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.decision import Call, Decision, Past, Verdict
from plumbline.judge.history.detection import is_ruled_out, onset
from plumbline.judge.history.reference import HUGE, Reference, reference_of
from plumbline.schema import limits

Values = NDArray[np.float64]


def advance(past: Past, tonight: float, decision: Decision) -> Past:
    """Return the state after tonight's event."""
    num, is_over = len(past.values), has_recovered(past, decision)
    untested = num + 1 if is_over or decision.reason == "machine" else past.untested
    if past.question is not None and decision.question is not None and decision.question.asked != past.question.asked:
        untested = num
    after = replace(past, values=np.append(past.values, tonight), untested=untested, question=decision.question)
    if decision.new and decision.onset is not None and decision.reference is not None:
        since, size = min(decision.onset.index, num), decision.onset.size
        if decision.reason == "improved":
            return moved(after, since, lead=decision.lead, call=None)
        call = Call(since, decision.reference.centre, max(size, 0.0), past.level, decision.is_cleared, past.lead)
        if past.call is not None:
            # The earlier loss is still open: its level is no reference from which to recover.
            call = replace(past.call, since=since, is_cleared=decision.is_cleared)
        # The level of a creep is where it has come to.
        level = max(since, num + 1 - limits.LEAST_NIGHTS) if decision.onset.shape == "creep" else since
        return moved(after, level, lead=decision.lead, call=call)
    if past.call is None or not is_over:
        return after
    # The nights of the loss enter no reference.
    values = after.values.copy()
    values[past.call.since : num] = np.nan
    return replace(after, values=values, level=past.call.level, lead=past.call.lead, call=None)


def moved(past: Past, since: int, *, lead: float, call: Call | None) -> Past:
    """Return the state with a level that begins at `since`; the level before lends its spread."""
    prior = reference_of(past.values[past.level : since], floor=past.floor, prior=past.prior, is_whole=True)
    return replace(past, level=since, untested=since, lead=lead, call=call, question=None, prior=prior or past.prior)


def has_recovered(past: Past, decision: Decision) -> bool:
    """Return whether tonight ends an open loss."""
    was_open = past.call is not None or past.question is not None
    return was_open and decision.verdict == "pass" and decision.question is None and decision.reason != "open-call"


def level_reference(past: Past) -> Reference | None:
    """Return the reference of the level: nights from the start of an open loss on enter none."""
    question = past.question
    nights = past.values[past.level : question.since if question else None]
    nights = np.clip(nights[np.isfinite(nights)], -HUGE, HUGE)
    return reference_of(nights, floor=past.floor, prior=past.prior, is_whole=question is not None)


def nights_since(past: Past, place: int, tonight: float) -> Values:
    """Return the finite nights since one, and tonight."""
    values = past.values[place:]
    return np.append(np.clip(values[np.isfinite(values)], -HUGE, HUGE), min(max(tonight, -HUGE), HUGE))


def night_indexes(past: Past) -> NDArray[np.intp]:
    """Return the indexes of the level's finite nights among all nights, and tonight's."""
    places = np.append(np.flatnonzero(np.isfinite(past.values)), len(past.values))
    return np.asarray(places[places >= past.level])


def with_index(decision: Decision, past: Past) -> Decision:
    """Count the onset's index among all nights, including missing values."""
    if decision.onset is None:
        return decision
    places = night_indexes(past)
    index = int(places[min(decision.onset.index, len(places) - 1)])
    return replace(decision, onset=replace(decision.onset, index=index))


def without_ruled_out(past: Past, tonight: float) -> Past:
    """Drop a question that the nights since have ruled out."""
    question, reference = past.question, level_reference(past)
    if question is None or reference is None:
        return past
    fresh = nights_since(past, question.asked + 1, tonight)
    is_over = is_ruled_out(question.size, fresh, reference, is_cleared=question.is_cleared)
    return replace(past, question=None, untested=len(past.values)) if is_over else past


def known_call(past: Past, tonight: float) -> Decision | None:
    """Return the open call's decision until the newest nights rule out half of its loss.

    A loss that is not the software's alerts once: it is known then, and its nights pass.
    """
    call = past.call
    if call is None:
        return None
    before = replace(past.prior or Reference(0.0, past.floor, limits.ENOUGH_NIGHTS, 0.0), centre=call.centre)
    if is_ruled_out(call.size, nights_since(past, call.since, tonight), before, is_cleared=True):
        return None
    seen = nights_since(past, call.level, tonight)
    size = float(np.median(seen[-limits.SIDE_NIGHTS :])) - call.centre
    verdict: Verdict = "pass" if call.is_cleared else "drift"
    # Dated again: every night since says more about the first one.
    known = Decision(verdict, "open-call", onset=onset(seen, before), size=size, is_cleared=call.is_cleared)
    return with_index(known, replace(past, level=call.level))
