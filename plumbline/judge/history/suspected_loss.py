"""Decision on a suspected loss, by the cheapest experiments first.

Where the loss needs an experiment, the decision names it; the caller runs it and decides again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Decision, Past, Reason, RerunTest, Software
from plumbline.judge.history.detectors import Detection, onset
from plumbline.judge.history.lasting import lasting_loss, longest_shown
from plumbline.judge.history.paired import PairedTest, paired_test
from plumbline.judge.history.quantiles import normal_quantile, t_quantile
from plumbline.judge.history.reference import HUGE, Reference
from plumbline.schema import limits

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SuspectedLoss:
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
        recent = float(np.median(self.here[-limits.LEAST_NIGHTS :])) - self.reference.centre
        if max(size, recent) > self.allowed.least_change:
            return None
        dated = onset(self.here, self.reference)
        return Decision("pass", "within-margin", self.detections, "", self.reference, dated, size=size)

    def decision(self) -> Decision:
        """Decide by the cheapest experiments first."""
        if self.answers.reruns is None:
            return self._open("reruns")
        rerun = judge_reruns(self.answers.reruns, self.reference, self.allowed.rerun_alpha)
        if not math.isfinite(rerun.z):
            return self._open("")
        if self.past.anchor is not None and any(detection.kind == "anchor" for detection in self.detections):
            against = judge_reruns(self.answers.reruns, self.past.anchor, self.allowed.rerun_alpha)
            if against.holds:
                return self._decided("drift", "anchor", against, reference=self.past.anchor)
        is_open = self.past.question is not None and not self.past.question.is_cleared
        if self.software == "can-differ" and (rerun.holds or is_open):
            return self._by_experiment(rerun)
        if not rerun.holds:
            return self._decided("pass", "went-away", rerun)
        return self._without_software(rerun)

    def _by_experiment(self, rerun: RerunTest) -> Decision:
        asked = self.past.question
        loss = rerun.mean - self.reference.centre if rerun.holds or asked is None else asked.size
        if self.answers.tonight is None or self.answers.baseline is None:
            decided = self._open("ab" if self.allowed.num_blocks else "")
            return replace(decided, rerun=rerun, size=loss)
        difference = paired_test(self.answers.tonight, self.answers.baseline, limits.ALPHA / 2)
        if difference is None:
            return replace(self._open(""), rerun=rerun)
        alpha, half = self.allowed.ab_alpha(self.answers.num_tested), loss / 2
        if difference.p_value > alpha:
            if difference.rules_out(max(half, self.allowed.least_change), limits.ALPHA / 2):
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
        lost = lasting_loss(self.here, self.reference, self.allowed.lasting_alpha, lengths=self.allowed.lasting_nights)
        is_cleared = self.software == "equal" or (difference is not None and not undecided)
        if lost.holds and lost.size > self.allowed.least_change:
            return replace(self._decided("drift", "lasting", rerun, difference), is_cleared=is_cleared)
        if undecided:
            return self._decided("inconclusive", "undecided", rerun, difference)
        if not is_cleared:
            return self._decided("inconclusive", "unconfirmed", rerun, difference)
        if not rerun.holds:
            return replace(self._decided("pass", "went-away", rerun, difference), is_cleared=True)
        # A slow night of the machine is no person's work within the team's limit, and is called once it lasts.
        is_tolerated = rerun.mean - self.reference.centre <= self.allowed.tolerated
        verdict: Literal["pass", "inconclusive"] = "pass" if is_tolerated else "inconclusive"
        return replace(self._decided(verdict, "machine", rerun, difference), is_cleared=True)

    def _open(self, needs: Literal["reruns", "ab", ""]) -> Decision:
        size = float(self.here[-1]) - self.reference.centre
        reason: Reason = "open-question" if self.detections else "open-loss"
        return Decision("inconclusive", reason, self.detections, needs, self.reference, size=size)

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
        width = t_quantile(limits.ALPHA / 2, round(against.freedom)) * against.predicted()
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


def by_nights_alone(
    here: Values, reference: Reference, detections: Sequence[Detection], allowed: Allowed
) -> Decision | None:
    """Decide on the newest night without experiments; `None` if no detector reports a loss, and the nights show none.

    A loss is drift once the newest nights show it at the budget's level, however many nights that takes. Only a sudden
    loss that has too few nights to be shown yet is `inconclusive`: its nights, and those after a detection among few
    nights, stay out of the reference until later nights rule the loss out, so that evidence adds up.
    """
    size = float(here[-1]) - reference.centre
    lost = longest_shown(here, reference, allowed.lasting_alpha, lengths=allowed.lasting_nights)
    decision = Decision("pass", "too-soon", tuple(detections), "", reference, size=size)
    if lost.holds and lost.size > allowed.least_change:
        dated = onset(here, reference)
        return replace(decision, verdict="drift", reason="lasting", onset=dated, size=lost.size, new=True)
    if not detections:
        return None
    is_sudden = any(detection.kind != "creep" for detection in detections)
    # Worse than every night before: whatever the distribution, as rare as one in all nights so far.
    is_record = float(here[-1]) > float(here[: -lost.num_nights].max(initial=-np.inf))
    return replace(decision, verdict="inconclusive") if is_sudden and is_record else decision
