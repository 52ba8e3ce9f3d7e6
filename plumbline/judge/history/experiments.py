"""Experiments of a night: what reruns and an A/B say about a change, whose gain is the mirror of a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Decision, RerunTest, Software
from plumbline.judge.history.paired import PairedTest, paired_test
from plumbline.judge.history.distributions import normal_quantile
from plumbline.judge.history.reference import HUGE, Reference
from plumbline.schema import limits


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of tonight's experiments on a loss; without one, `needs` names the experiment to run."""

    says: Literal["nothing", "went-away", "software", "machine", "unconfirmed"]
    needs: Literal["reruns", "ab", ""] = ""
    rerun: RerunTest | None = None
    difference: PairedTest | None = None
    loss: float = 0.0
    """Loss that the A/B tests."""
    missing_blocks: int = 0


def ask(  # noqa: PLR0917 - all that an experiment needs
    answers: Answers, reference: Reference, allowed: Allowed, software: Software, lead: float, open_loss: float | None
) -> Answer:
    """Answer by the cheapest experiments first whether a loss is real, and whether the software causes it.

    `open_loss` is that of an earlier night, which the A/B tests even if tonight's reruns do not show it.
    """
    if answers.reruns is None:
        return Answer("nothing", "reruns" if allowed.num_reruns else "")
    rerun = judge_reruns(answers.reruns, reference, allowed.rerun_alpha)
    if not math.isfinite(rerun.z):
        return Answer("nothing")
    if software == "can-differ" and (rerun.holds or open_loss is not None):
        loss = rerun.mean - reference.centre
        return _by_ab(answers, allowed, rerun, lead, open_loss if open_loss is not None and not rerun.holds else loss)
    if not rerun.holds:
        return Answer("went-away", rerun=rerun)
    return Answer("machine" if software == "equal" else "unconfirmed", rerun=rerun)


def _by_ab(answers: Answers, allowed: Allowed, rerun: RerunTest, lead: float, loss: float) -> Answer:
    """Answer by the interleaved A/B whether the software causes a loss.

    The level's software is better than the baseline's by its `lead`; an unknown one clears no software.
    """
    if answers.tonight is None or answers.baseline is None:
        return Answer("nothing", "ab" if allowed.num_blocks else "", rerun, loss=loss)
    ahead = lead if math.isfinite(lead) else 0.0
    difference = paired_test(answers.tonight, answers.baseline - ahead, limits.ALPHA / 2)
    if difference is None:
        return Answer("nothing", "", rerun)
    alpha = allowed.ab_alpha(answers.num_tested)
    if difference.p_value <= alpha:
        return Answer("software", "", rerun, difference, loss)
    half = max(loss / 2, allowed.least_change)
    if math.isfinite(lead) and difference.rules_out(half, limits.ALPHA / 2):
        return Answer("machine", "", rerun, difference, loss)
    return Answer("unconfirmed", "", rerun, difference, loss, difference.missing_blocks(loss, alpha))


def prove(gain: Decision, before: Reference, answers: Answers, allowed: Allowed, software: Software) -> Decision:
    """Return a gain with the software's lead, which grows by it if an A/B says so; `before` is the earlier reference.

    Without its experiments the gain is not yet new. Where none can be run, the lead is unknown afterwards, and no A/B
    clears the software of a later loss.
    """
    if software == "equal":
        return replace(gain, is_cleared=True)
    if software == "unavailable" or not (allowed.num_reruns and allowed.num_blocks):
        return replace(gain, lead=math.nan)
    lead = gain.lead if math.isfinite(gain.lead) else 0.0
    answer = ask(answers.mirrored(), before.mirrored(), allowed, software, -lead, None)
    gain = replace(gain, needs=answer.needs, rerun=answer.rerun)
    if answer.says == "software" and answer.difference is not None:
        return replace(gain, lead=lead + answer.difference.size, difference=answer.difference)
    if answer.says == "machine":
        return replace(gain, is_cleared=True, difference=answer.difference)
    return replace(gain, new=False)


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
