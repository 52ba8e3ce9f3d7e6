"""Tonight's decisions over all metrics of a platform.

Each becomes a finding, an entry of the series file, and a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Literal

import numpy as np

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Decision, Past, Software
from plumbline.judge.history.engine import decide, has_recovered
from plumbline.judge.history.metrics import Metric
from plumbline.judge.history.segments import MetricHistory, past_of
from plumbline.judge.history.series import CallEntry
from plumbline.schema.verdict import Finding

REASON_TEXTS: Mapping[str, str] = {
    "quiet": "no detector reports a loss",
    "learning": "too few nights for a reference",
    "missing": "no finite value tonight",
    "open-question": "a detector reports a loss, and no experiment has tested it yet",
    "too-soon": "a detector reports a loss, and too few nights show it",
    "went-away": "a detector reported a loss, and reruns of tonight do not show it",
    "software": "an interleaved A/B on one machine shows the loss: the software causes it",
    "machine": "the software does not cause it: the cause is this night's machine",
    "undecided": "reruns show the loss, and the A/B neither shows nor rules out that the software causes it",
    "unconfirmed": "reruns show the loss, and no A/B separates software from machine",
    "open-loss": "an earlier loss is open: no experiment answers it, and later nights do not rule it out "
    "(hint: if it is intended, accept a new baseline)",
    "lasting": "the loss lasts over several nights",
    "anchor": "the cumulative loss against the first acceptance is over its limit",
    "too-small": "confirmed, and smaller than the least change that counts",
    "within-margin": "within its margin: new software changes it by chance",
    "improved": "better for several nights: the reference from then on (accept a new baseline to record it)",
    "open-call": "reported on an earlier night, and still open",
    "shift": "a shift of cost within the step: the whole step is not slower",
    "recovered": "an earlier loss has recovered",
}


@dataclass(frozen=True, slots=True)
class LineDecision:
    """Decision on one metric of one workload tonight."""

    line: MetricHistory
    past: Past
    """The nights before tonight."""
    decision: Decision
    shifted: bool = False
    """Whether a part of the step is slower, and the whole step is not: no drift."""
    recovered: bool = False
    note: str = ""
    """Details of the software, the reruns or the phases, for the sentence."""

    @property
    def verdict(self) -> Literal["pass", "drift", "inconclusive"]:
        """Return the effective verdict: a shift of cost passes."""
        return "pass" if self.shifted else self.decision.verdict

    @property
    def needs(self) -> str:
        """Return the experiment to run; a shift needs none."""
        return "" if self.shifted else self.decision.needs

    @property
    def reason(self) -> str:
        """Return the effective reason, including shift and recovery."""
        return "shift" if self.shifted else "recovered" if self.recovered else self.decision.reason


def judge_lines(
    lines: Sequence[MetricHistory],
    allowed: Allowed,
    answers: Mapping[tuple[str, str], Answers] | None = None,
    software: Mapping[tuple[str, str], Software] | None = None,
) -> tuple[LineDecision, ...]:
    """Decide on the last night of every metric.

    `answers` and `software` are keyed by (workload, metric). A part of the step that is worse while the whole is not is
    a shift of cost: it needs no experiment.
    """
    decisions: list[LineDecision] = []
    for history in lines:
        last = len(history.values) - 1
        past = past_of(history, until=last)
        tonight = float(history.metric.scores(history.values[last:]).item())
        key = (history.workload, history.metric.name)
        given = (answers or {}).get(key, Answers())
        own = allowed.of(history.metric.name)
        decision = decide(past, tonight, own, given, software=(software or {}).get(key, "can-differ"))
        decisions.append(LineDecision(history, past, decision, recovered=has_recovered(past, decision)))
    verdicts = {(judged.line.workload, judged.line.metric.name): judged.decision.verdict for judged in decisions}
    return tuple(
        replace(judged, shifted=True)
        if judged.line.metric.part_of
        and (judged.decision.verdict != "pass" or judged.decision.reason == "machine")
        and judged.decision.reason not in ("missing", "learning")
        and verdicts.get((judged.line.workload, judged.line.metric.part_of)) == "pass"
        else judged
        for judged in decisions
    )


def call_entry(judged: LineDecision) -> CallEntry | None:
    """Return a decision's entry for the series file; `None` if there is nothing to keep."""
    history, decision = judged.line, judged.decision
    is_pending = judged.reason == "improved" and not decision.new
    if is_pending or judged.reason in ("quiet", "learning", "missing", "open-call", "within-margin"):
        return None
    onset, question = decision.onset, decision.question
    new = decision.new and not judged.shifted and onset is not None
    # A shift of cost, which is no loss, opens no question.
    begin = question.since if question and not judged.shifted else onset.index if onset else None
    size = question.size if question and not judged.shifted else onset.size if onset else None
    if size is not None and judged.reason != "improved":
        size = max(size, 0.0)
    return CallEntry(
        record=history.records[-1],
        metric=history.metric.name,
        verdict=judged.verdict,
        reason=judged.reason,
        new=new,
        answered=question.is_cleared if question is not None else decision.is_cleared,
        since=history.times[begin] if begin is not None else None,
        shape=onset.shape if onset else "",
        centre=decision.reference.centre if decision.reference else None,
        size=size,
        low=decision.low,
        high=decision.high,
        cause="software" if decision.reason == "software" else None,
        lead=decision.lead if math.isfinite(decision.lead) else None,
    )


def finding_of(judged: LineDecision) -> Finding:
    """Convert a decision to a finding.

    It has the relative change tonight, its limit, and a sentence.
    """
    history, decision = judged.line, judged.decision
    reference = decision.reference
    against = f"reference of {reference.count} nights" if reference else ""
    observed = history.metric.change(decision.size) if decision.size is not None else None
    limit = None
    if reference is not None and decision.detections:
        limit = history.metric.change(decision.detections[0].limit * reference.spread)
    return Finding(
        check=f"history.{history.metric.name}",
        outcome=judged.verdict,
        metric=f"change of {history.metric.name} against the reference",
        observed=observed if observed is None or np.isfinite(observed) else None,
        limit=limit if limit is None or np.isfinite(limit) else None,
        unit=history.metric.scale,
        against=against,
        detail=sentence(judged),
    )


def sentence(judged: LineDecision) -> str:
    """Describe a decision: since when, size, certainty and reason."""
    history, decision = judged.line, judged.decision
    parts = [f"{history.workload}: {history.metric.name}"]
    if decision.size is not None and judged.reason not in ("quiet", "learning"):
        parts.append(_size(judged))
    if decision.onset is not None:
        index = min(decision.onset.index, len(history.times) - 1)
        parts.append(f"since {history.day(index)}, round {history.rounds[index]} ({decision.onset.shape})")
    elif decision.question is not None and decision.question.asked < len(history.times) - 1:
        index = decision.question.since
        parts.append(f"since {history.day(index)}, round {history.rounds[index]}")
    parts.append(REASON_TEXTS[judged.reason])
    if decision.detections:
        detected = (
            f"{detection.kind} {detection.score:.3g} (limit {detection.limit:.3g})" for detection in decision.detections
        )
        parts.append(f"detected as: {', '.join(detected)}")
    if decision.difference is not None:
        parts.append(f"A/B of {decision.difference.num_runs} runs: p = {decision.difference.p_value:.2g}")
    if decision.missing_blocks:
        parts.append(f"{decision.missing_blocks} more blocks (dispatch.ab_blocks, dispatch.ab_seconds)")
    if judged.note and judged.reason not in ("quiet", "learning", "missing", "went-away", "open-call", "improved"):
        parts.append(judged.note)
    return "; ".join(parts)


def entry_sentence(history: MetricHistory, entry: CallEntry) -> str:
    """Describe a decision that a round has kept."""
    parts = [f"{history.workload}: {history.metric.name}"]
    if entry.size is not None:
        parts.append(_interval(history.metric, entry.size, entry.low, entry.high))
    if entry.since is not None:
        parts.append(f"since {datetime.fromtimestamp(entry.since, timezone.utc):%Y-%m-%d}")
    return "; ".join([*parts, REASON_TEXTS.get(entry.reason, entry.reason)])


def _size(judged: LineDecision) -> str:
    decision = judged.decision
    return _interval(judged.line.metric, decision.size or 0.0, decision.low, decision.high)


def _interval(metric: Metric, size: float, low: float | None, high: float | None) -> str:
    form = "{:+.4f}" if metric.scale == "absolute" else "{:+.2%}"
    text = form.format(metric.change(size))
    if low is None or high is None:
        return text
    ends = sorted((metric.change(low), metric.change(high)))
    return f"{text} (95% interval {form.format(ends[0])} to {form.format(ends[1])})"
