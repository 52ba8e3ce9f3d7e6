"""Evaluation of a night's reruns and A/B tests, for both directions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Decision, Past, RerunTest, Software
from plumbline.judge.history.detection import known_call
from plumbline.judge.history.reference import Reference
from plumbline.judge.statistics.distributions import normal_quantile, t_quantile
from plumbline.judge.statistics.paired import paired_test
from plumbline.judge.statistics.samples import HUGE
from plumbline.schema import limits


def ask(  # noqa: PLR0917 - all that an experiment needs
    asked: Decision, reference: Reference, answers: Answers, allowed: Allowed, software: Software, lead: float,
    open_loss: float | None = None,
) -> Decision:  # fmt: skip
    """Decide by the cheapest experiments whether a regression is real and software-caused.

    Without an answer the decision stays, and `needs` names the experiment to run. `lead` is how much better the level's
    software is than the baseline's; an unknown one clears no software. `open_loss` is that of an earlier night, which
    the A/B tests even if tonight's reruns do not show it.
    """
    if answers.reruns is None:
        return replace(asked, needs="reruns")
    rerun = judge_reruns(answers.reruns, reference)
    if not math.isfinite(rerun.z):
        return asked
    size = rerun.mean - reference.centre
    width = t_quantile(limits.ALPHA / 2, round(reference.freedom)) * reference.predicted()
    asked = replace(asked, rerun=rerun, size=size, low=size - width, high=size + width)
    if software == "can-differ" and (rerun.holds or open_loss is not None):
        return _by_ab(asked, answers, allowed, lead, size if rerun.holds or open_loss is None else open_loss)
    if not rerun.holds:
        return replace(asked, verdict="pass", reason="went-away")
    return replace(asked, reason="machine" if software == "equal" else "unconfirmed", is_cleared=software == "equal")


def _by_ab(asked: Decision, answers: Answers, allowed: Allowed, lead: float, loss: float) -> Decision:
    """Decide by an interleaved A/B whether the software causes a regression."""
    if answers.tonight is None or answers.baseline is None:
        return replace(asked, needs="ab" if allowed.num_blocks else "", size=loss)
    is_known, alpha = math.isfinite(lead), allowed.ab_alpha(answers.num_tested)
    difference = paired_test(answers.tonight, answers.baseline - (lead if is_known else 0.0), limits.ALPHA / 2)
    if difference is None:
        return asked
    asked = replace(asked, difference=difference)
    if difference.p_value <= alpha:
        return replace(asked, reason="software", size=difference.size, low=difference.low, high=difference.high)
    if is_known and difference.rules_out(max(loss / 2, allowed.least_change), limits.ALPHA / 2):
        return replace(asked, reason="machine", is_cleared=True)
    return replace(asked, reason="unconfirmed", missing_blocks=difference.missing_blocks(loss, alpha))


def prove(gain: Decision, before: Reference, answers: Answers, allowed: Allowed, software: Software) -> Decision:
    """Update a gain with the software advantage that an A/B measured.

    Without its experiments the gain is not yet new. Where none can be run, the lead is unknown afterwards, and no A/B
    clears the software of a later regression.
    """
    if software == "equal":
        return replace(gain, is_cleared=True)
    if software == "unavailable" or not (allowed.num_reruns and allowed.num_blocks):
        return replace(gain, lead=math.nan)
    lead = gain.lead if math.isfinite(gain.lead) else 0.0
    answer = ask(gain, before.mirrored(), answers.mirrored(), allowed, software, -lead)
    gain = replace(gain, needs=answer.needs, rerun=answer.rerun)
    if answer.reason == "software" and answer.difference is not None:
        # A larger lead than is shown would make the next A/B find a loss.
        return replace(gain, new=True, lead=lead + answer.difference.low, difference=answer.difference)
    if answer.reason == "machine":
        return replace(gain, is_cleared=True, difference=answer.difference)
    return replace(gain, new=False)


def judge_reruns(reruns: Sequence[float], reference: Reference) -> RerunTest:
    """Test tonight's reruns against the reference.

    The run that raised the question is excluded. The reruns share the night, so that their mean is compared with the
    spread of one night, not of many. The test only saves the more expensive A/B.
    """
    finite = [min(max(value, -HUGE), HUGE) for value in reruns if math.isfinite(value)]
    limit = normal_quantile(1 - limits.ALPHA)
    if not finite:
        return RerunTest(holds=False, z=-math.inf, limit=limit, mean=math.nan)
    mean = math.fsum(finite) / len(finite)
    z = (mean - reference.centre) / reference.predicted()
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / max(len(finite) - 1, 1))
    return RerunTest(holds=z > limit, z=z, limit=limit, mean=mean, spread=spread)


def seen_over(past: Past, tonight: float, allowed: Allowed, answers: Answers, software: Software) -> int | Decision:
    """Return the number of open calls by an A/B of a night that seems to have recovered, or what asks for it."""
    call, num_calls = past.calls[-1], len(past.calls)
    half = call.before.centre + call.size / 2
    has_ab = software == "can-differ" and allowed.num_reruns > 0 and allowed.num_blocks > 0
    # A false call whose machine stays slow never seems to have recovered.
    is_due = len(past.values) - call.since in limits.GAIN_NIGHTS
    if call.is_cleared or not has_ab or (tonight > half and not is_due):
        return num_calls
    asked = replace(known_call(past, tonight), question=past.question)
    if answers.reruns is None:
        return replace(asked, needs="reruns")
    rerun = judge_reruns(answers.reruns, call.before)
    if not rerun.mean <= half and not is_due:
        return num_calls
    if answers.tonight is None or answers.baseline is None:
        return replace(asked, needs="ab", rerun=rerun, size=call.size)
    for place, ended in enumerate(past.calls):
        difference = paired_test(answers.tonight, answers.baseline - ended.lead, limits.ALPHA / 2)
        least = max(ended.size / 2, allowed.at(ended.before.centre).least_change)
        if difference is not None and difference.rules_out(least, limits.ALPHA / 2):
            return place
    return num_calls
