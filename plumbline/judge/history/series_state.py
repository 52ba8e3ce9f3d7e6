"""State of one series, night after night: accepted, open or called.

Input: the series' past, tonight's value and the limits; output: one typed decision. The night, `plumbline history`, the
report, the simulator and the tests all call `decide`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Call, Decision, Past, Question, Software
from plumbline.judge.history.detectors import Detection, Onset, detect, onset
from plumbline.judge.history.lasting import is_ruled_out, lasting_loss, overdue_loss
from plumbline.judge.history.reference import HUGE, Reference, reference_of
from plumbline.judge.history.suspected_loss import SuspectedLoss, by_nights_alone
from plumbline.schema import limits

Values = NDArray[np.float64]
_ANSWERS = frozenset({"open-question", "software", "machine", "undecided", "unconfirmed", "lasting"})
"""Reasons of a night with a question about the software."""
_NO_ANSWERS = Answers()
_SILENT = frozenset({"quiet", "went-away"})
"""Reasons of a night that says nothing of a loss."""


def decide(
    past: Past,
    tonight: float,
    allowed: Allowed,
    answers: Answers = _NO_ANSWERS,
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
    is_open = past.question is not None
    reference = reference_of(values[level : _end(past, kept)], floor=past.floor, prior=past.prior, is_whole=is_open)
    if past.question is not None and reference is not None:
        fresh = np.append(values[int(kept[: past.question.asked + 1].sum()) :], tonight)
        if is_ruled_out(past.question.size, fresh, reference):
            past = replace(past, question=None, untested=len(past.values))
            reference = reference_of(values[level:], floor=past.floor, prior=past.prior)
    open_call = _open_call(past, values, tonight, kept)
    if reference is None:
        return open_call or Decision("inconclusive", "learning", question=past.question)
    here = np.append(values[level:], tonight)
    allowed = allowed.at(reference.centre)
    detections = detect(here, int(kept[: past.untested].sum()) - level, reference, allowed)
    reference = _before_creep(here, detections, past) or reference
    over_anchor = _over_anchor(past, values, tonight, allowed)
    if over_anchor is not None:
        detections = (*detections, over_anchor)
    alone = None if allowed.num_reruns else by_nights_alone(here, reference, detections, allowed)
    if alone is not None:
        decision = alone
    elif detections or _can_be_answered(past, here, reference, allowed, software):
        suspected = SuspectedLoss(here, reference, detections, allowed, answers, software, past)
        has_margin = detections and allowed.margin is not None and over_anchor is None
        within = suspected.within_margin() if has_margin else None
        decision = within or suspected.decision()
    else:
        decision = _quiet(here, reference, allowed)
    if past.question is not None and decision.verdict != "drift" and allowed.num_reruns:
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
    untested = num if is_new else past.untested
    past = replace(past, values=np.append(past.values, tonight), untested=untested, question=decision.question)
    if decision.new and decision.onset is not None and decision.reference is not None:
        since = min(decision.onset.index, num)
        size = max(decision.onset.size, 0.0)
        call = Call(since, decision.reference.centre, size, past.level, decision.is_cleared)
        if past.call is not None:
            # The earlier loss is still open: its level is no reference from which to recover.
            call = replace(past.call, since=since, is_cleared=decision.is_cleared)
        return replace(past, level=since, untested=since, call=call, prior=decision.reference)
    if was_open and decision.verdict == "pass" and decision.question is None:
        level = past.call.level if past.call else past.level
        return replace(past, level=level, untested=num + 1, call=None)
    if decision.reason == "machine":
        return replace(past, untested=num + 1)
    return past


def _before_creep(here: Values, detections: Sequence[Detection], past: Past) -> Reference | None:
    """Return the reference of the nights before a creep, if one is detected: a growing reference has taken it in."""
    begin = min((detection.begin for detection in detections if detection.begin is not None), default=0)
    return reference_of(here[:begin], floor=past.floor, prior=past.prior, is_whole=True) if begin else None


def _end(past: Past, kept: NDArray[np.bool_]) -> int:
    """Return the end of the nights of the reference."""
    return int(kept[: past.question.since if past.question else None].sum())


def _can_be_answered(past: Past, here: Values, reference: Reference, allowed: Allowed, software: Software) -> bool:
    """Return whether an experiment of tonight can answer an open loss, which tonight does not rule out by itself."""
    if past.question is None or past.question.is_cleared or software != "can-differ":
        return False
    can_run = allowed.num_reruns > 0 and allowed.num_blocks > 0
    return can_run and not is_ruled_out(past.question.size, here[-1:], reference)


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
    if question.is_cleared or decision.is_cleared:
        # A slow machine is no person's work within the team's limit, and is called once it lasts.
        if decision.reason not in _SILENT or decision.is_cleared:
            return decision
        size = float(np.median(here[-num_fresh:])) - reference.centre
        verdict: Literal["pass", "inconclusive"] = "pass" if size <= allowed.tolerated else "inconclusive"
        return replace(decision, verdict=verdict, reason="slow-machine", size=size)
    return replace(decision, verdict="inconclusive", reason="open-loss") if decision.reason in _SILENT else decision


def _open_question(past: Past, decision: Decision, here: Values, kept: NDArray[np.bool_]) -> Question | None:
    """Return the loss that is open after tonight."""
    if decision.verdict == "drift":
        return None
    if decision.reason == "went-away" and decision.is_cleared:
        return None
    if past.question is not None:
        return replace(past.question, is_cleared=_cleared_by(decision, past.question))
    if decision.reference is None:
        return None
    # By nights alone: few nights are soon moved by a loss that no single one of them shows.
    is_young = decision.reason == "too-soon" and decision.reference.count < limits.ENOUGH_NIGHTS
    if not (decision.verdict == "inconclusive" or decision.is_cleared or is_young):
        return None
    dated = onset(here, decision.reference)
    places = np.append(np.flatnonzero(kept), len(kept))
    places = places[places >= past.level]
    first = min(max(dated.index, 1 if past.prior else limits.LEAST_NIGHTS), len(places) - 1)
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
    before = past.prior or Reference(call.centre, past.floor, limits.ENOUGH_NIGHTS, 0.0)
    # Nights before the loss say nothing about its end.
    if is_ruled_out(call.size, seen[int(kept[: call.since].sum()) :], replace(before, centre=call.centre)):
        return None
    level = int(kept[: call.level].sum())
    # Dated again: every night since says more about the first one.
    dated = onset(seen[level:], replace(before, centre=call.centre))
    size = float(np.median(seen[-limits.SIDE_NIGHTS :])) - call.centre
    return _with_index(
        Decision("drift", "open-call", onset=dated, size=size, is_cleared=call.is_cleared), call.level, kept
    )


def _quiet(here: Values, reference: Reference, allowed: Allowed) -> Decision:
    mirrored = lasting_loss(-here, reference.mirrored(), allowed.lasting_alpha, lengths=allowed.lasting_nights)
    improved = mirrored.holds and mirrored.size > allowed.least_change
    size = -mirrored.size if improved else float(here[-1]) - reference.centre
    return Decision("pass", "improved" if improved else "quiet", reference=reference, size=size)


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
