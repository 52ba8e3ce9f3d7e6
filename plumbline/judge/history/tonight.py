"""Tonight's change of a series: what reruns, an A/B and the nights themselves say of it.

Where an answer is missing, the decision names the experiment; the caller runs it and decides again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Decision, Detection, Onset, Past, Reason, RerunTest, Software
from plumbline.judge.history.detection import lasting, onset
from plumbline.judge.history.paired import paired_test
from plumbline.judge.history.quantiles import normal_quantile, t_quantile
from plumbline.judge.history.reference import HUGE, Reference, reference_of
from plumbline.schema import limits

Values = NDArray[np.float64]


@dataclass(slots=True)
class Tonight:
    """State, limits and answers of tonight."""

    past: Past
    allowed: Allowed
    answers: Answers
    software: Software

    def is_within_margin(self, here: Values, reference: Reference) -> bool:
        """Return whether tonight and the newest nights' median are within the margin."""
        recent = float(np.median(here[-limits.LEAST_NIGHTS :]))
        worst = max(float(here[-1]), recent) - reference.centre
        return self.allowed.margin is not None and worst <= self.allowed.least_change

    def asked(self, here: Values, reference: Reference, detections: tuple[Detection, ...]) -> Decision:
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
                return self.called(asked, "anchor", onset(here, anchor), against.mean - anchor.centre)
        question = self.past.question
        is_open = question is not None and not question.is_cleared
        asked = _with_interval(replace(asked, rerun=rerun), rerun.mean - reference.centre, reference)
        if self.software == "can-differ" and (rerun.holds or is_open):
            loss = (
                question.size if question is not None and is_open and not rerun.holds else rerun.mean - reference.centre
            )
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
            return self.called(shown, "software", onset(here, _of(asked)), difference.size)
        half = max(loss / 2, self.allowed.least_change)
        if math.isfinite(self.past.lead) and difference.rules_out(half, limits.ALPHA / 2):
            return self._by_nights(asked, here, "machine")
        missing = difference.missing_blocks(loss, alpha)
        return replace(self._by_nights(asked, here, "undecided"), missing_blocks=missing)

    def _by_nights(
        self, asked: Decision, here: Values, reason: Literal["machine", "unconfirmed", "undecided"]
    ) -> Decision:
        """Decide without a software cause: drift if it lasts, and is beyond the limit where the software is cleared."""
        is_cleared, reference = reason == "machine", _of(asked)
        lost = lasting(here, reference, self.allowed.lasting_alpha)
        if lost.holds and lost.size > (self.allowed.drop if is_cleared else self.allowed.least_change):
            return self.called(replace(asked, is_cleared=is_cleared), "lasting", onset(here, reference), lost.size)
        if not is_cleared:
            return replace(asked, reason=reason)
        asked = replace(asked, is_cleared=True)
        rerun = asked.rerun
        if rerun is None or not rerun.holds:
            return replace(asked, verdict="pass", reason="went-away")
        is_within = rerun.mean - reference.centre <= self.allowed.tolerated
        return replace(asked, verdict="pass" if is_within else "inconclusive", reason="machine")

    def called(self, asked: Decision, reason: Reason, dated: Onset, size: float) -> Decision:
        """Call a loss; the software's lead is known where an A/B has measured it, or it has not changed."""
        lead = self.past.lead - size if reason == "software" else self.past.lead if asked.is_cleared else math.nan
        own = asked.size if reason == "software" or asked.low is not None else size
        return replace(asked, verdict="drift", reason=reason, onset=dated, size=own, new=True, lead=lead)

    def gain(self, here: Values, reference: Reference) -> Decision | None:
        """Return the decision on a gain that lasts; `None` without one.

        A proven gain moves the reference. An A/B says whether the software's lead grows by it; where none can be run,
        the lead is unknown afterwards, and no A/B clears the software of a later loss.
        """
        past, better = self.past, -here
        fitted = onset(better, reference.mirrored())
        # Fewer nights are no reference: the luck of the first ones would ask about the next ones.
        is_open = past.question is not None or past.call is not None
        if is_open or len(here) - fitted.index < limits.OWN_NIGHTS:
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
        proven = Decision(
            "pass", "improved", (), "", reference, dated, size=-gained.size, new=True, lead=self.past.lead
        )
        return self._with_lead(proven, gained.size)

    def _with_lead(self, proven: Decision, gained: float) -> Decision:
        """Return the gain with the software's lead after it; without its experiments it is not yet new."""
        if self.software == "equal":
            return replace(proven, is_cleared=True)
        if self.software == "unavailable" or not self.allowed.num_blocks:
            return replace(proven, lead=math.nan)
        waiting = replace(proven, new=False)
        if self.answers.reruns is None:
            return replace(waiting, needs="reruns")
        mirrored = tuple(-value for value in self.answers.reruns)
        rerun = judge_reruns(mirrored, _of(proven).mirrored(), self.allowed.rerun_alpha)
        waiting = replace(waiting, rerun=rerun)
        if self.answers.tonight is None or self.answers.baseline is None:
            return replace(waiting, needs="ab" if rerun.holds else "")
        lead = self.past.lead if math.isfinite(self.past.lead) else 0.0
        difference = paired_test(-self.answers.tonight, lead - self.answers.baseline, limits.ALPHA / 2)
        if difference is not None and difference.p_value <= self.allowed.ab_alpha(self.answers.num_tested):
            return replace(proven, rerun=rerun, difference=difference, lead=lead + difference.size)
        half = max(gained / 2, self.allowed.least_change)
        is_cleared = difference is not None and difference.rules_out(half, limits.ALPHA / 2)
        return replace(proven, rerun=rerun, difference=difference, is_cleared=True) if is_cleared else waiting


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


def _of(decision: Decision) -> Reference:
    assert decision.reference is not None  # noqa: S101 - a suspected loss has one
    return decision.reference


def _with_interval(decision: Decision, size: float, reference: Reference) -> Decision:
    width = t_quantile(limits.ALPHA / 2, round(reference.freedom)) * reference.predicted()
    return replace(decision, size=size, low=size - width, high=size + width)
