"""State of a series between nights: open and reported regressions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plumbline.judge.history.decision import Call, Decision, Onset, Past
from plumbline.judge.history.detection import is_ruled_out, onset
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.statistics.samples import HUGE, Values
from plumbline.schema import limits


def advance(past: Past, tonight: float, decision: Decision) -> Past:
    """Return the state after tonight's decision."""
    num, is_over, dated = len(past.values), has_recovered(past, decision), decision.onset
    untested = num + 1 if is_over or decision.reason == "machine" else past.untested
    if past.question is not None and decision.question is not None and decision.question.asked != past.question.asked:
        untested = num
    after = replace(past, values=np.append(past.values, tonight), untested=untested, question=decision.question)
    if decision.new and dated is not None and decision.reference is not None:
        since = min(dated.index, num)
        if decision.reason == "improved":
            return moved(after, since, lead=decision.lead, call=None)
        # Beside an earlier loss that is still open, this level is no reference from which to recover.
        call = past.call or Call(
            since, decision.reference.centre, max(dated.size, 0.0), past.level, decision.is_cleared, past.lead
        )
        # The level of a creep is where it has come to.
        level = max(since, num + 1 - limits.LEAST_NIGHTS) if dated.shape == "creep" else since
        return moved(after, level, lead=decision.lead, call=replace(call, since=since, is_cleared=decision.is_cleared))
    if past.call is None or not is_over:
        return after
    # The nights of the loss enter no reference.
    values = after.values.copy()
    values[past.call.since : num] = np.nan
    return replace(after, values=values, level=past.call.level, lead=past.call.lead, call=None)


def moved(past: Past, since: int, *, lead: float, call: Call | None) -> Past:
    """Return the state with new reference nights from `since` on."""
    prior = reference_of(past.values[past.level : since], floor=past.floor, prior=past.prior, is_whole=True)
    return replace(past, level=since, untested=since, lead=lead, call=call, question=None, prior=prior or past.prior)


def has_recovered(past: Past, decision: Decision) -> bool:
    """Return whether tonight ends an open or reported regression."""
    was_open = past.call is not None or past.question is not None
    return was_open and decision.verdict == "pass" and decision.question is None and decision.reason != "open-call"


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


def without_ruled_out(past: Past, tonight: float) -> Past:
    """Drop an open suspected regression that later nights ruled out."""
    question, reference = past.question, level_reference(past)
    if question is None or reference is None:
        return past
    fresh = nights_since(past, question.asked + 1, tonight)
    is_over = is_ruled_out(question.size, fresh, reference, is_cleared=question.is_cleared)
    return replace(past, question=None, untested=len(past.values)) if is_over else past


def known_call(past: Past, tonight: float) -> Decision | None:
    """Return a reported regression's decision, until nights rule out half of it.

    A regression that is not the software's alerts once: it is known then, and its nights pass.
    """
    call = past.call
    if call is None:
        return None
    before = replace(past.prior or Reference(0.0, past.floor, limits.ENOUGH_NIGHTS, 0.0), centre=call.centre)
    if is_ruled_out(call.size, nights_since(past, call.since, tonight), before, is_cleared=True):
        return None
    seen = nights_since(past, call.level, tonight)
    return Decision(
        "pass" if call.is_cleared else "drift", "open-call",
        onset=replace(onset(seen, before), index=call.since),
        size=float(np.median(seen[-limits.SIDE_NIGHTS :])) - call.centre,
        is_cleared=call.is_cleared,
    )  # fmt: skip
