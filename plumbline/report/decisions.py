"""Sentences and findings for decisions on nightly metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from plumbline.judge.history.metrics import Metric
from plumbline.judge.history.night import LineDecision
from plumbline.judge.history.segments import MetricHistory
from plumbline.schema import limits
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.series import CallEntry
from plumbline.schema.verdict import Finding

_PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer")
REASON_TEXTS: Mapping[str, str] = {
    "quiet": "no detector reports a loss",
    "learning": "too few nights for a reference",
    "missing": "no finite value tonight",
    "open-loss": "a loss is still open: neither an experiment nor later nights decide it "
    "(hint: if it is intended, accept a new baseline)",
    "went-away": "a detector reported a loss, and reruns of tonight do not show it",
    "software": "an interleaved A/B on one machine shows the loss: the software causes it",
    "machine": "the software does not cause it: the cause is this night's machine",
    "unconfirmed": "reruns show the loss, and no A/B separates software from machine",
    "lasting": "the loss lasts over several nights",
    "too-small": "within the margin by which new software changes it by chance",
    "improved": "better for several nights: the reference from then on (accept a new baseline to record it)",
    "open-call": "reported on an earlier night, and still open",
    "shift": "a shift of cost within the step: the whole step is not slower",
    "recovered": "an earlier loss has recovered",
    "no-direction": "a change lasts, and the metric's direction is assumed "
    "(hint: --higher-is-worse METRIC or --lower-is-worse METRIC says whether it is a loss)",
}


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
    """Describe a decision: start, size, certainty and reason."""
    history, decision = judged.line, judged.decision
    parts = [f"{history.workload}: {history.metric.name}"]
    if decision.size is not None and judged.reason not in ("quiet", "learning"):
        parts.append(_size(judged))
    if decision.onset is not None:
        index = min(decision.onset.index, len(history.times) - 1)
        parts.append(f"{decision.onset.shape} since {since_round(history, index)}")
    elif decision.question is not None and decision.question.asked < len(history.times) - 1:
        index = decision.question.since
        parts.append(f"since {since_round(history, index)}")
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
    """Describe a decision stored by an earlier round."""
    parts = [f"{history.workload}: {history.metric.name}"]
    if entry.size is not None:
        parts.append(_interval(history.metric, entry.size, entry.low, entry.high))
    if entry.since is not None:
        parts.append(f"since {datetime.fromtimestamp(entry.since, UTC):%Y-%m-%d}")
    return "; ".join([*parts, REASON_TEXTS.get(entry.reason, entry.reason)])


def since_round(history: MetricHistory, index: int) -> str:
    """Return a night's date, with the round's name where that is not the date."""
    day, name = history.day(index), history.rounds[index]
    return day if name.startswith(day.replace("-", "")) or name == day else f"{day} ({name})"


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


def shift_note(before: SpeedEvidence, after: SpeedEvidence) -> str:
    """Describe which step phases changed, largest growth first, and the total change."""
    names = [name for name in _PHASES if name in before.breakdown and name in after.breakdown]
    step = sum(before.breakdown[name] for name in names)
    changes = {name: after.breakdown[name] - before.breakdown[name] for name in names}
    kept = sorted(
        (name for name in names if abs(changes[name]) > limits.LEAST_CHANGE * step), key=lambda n: -changes[n]
    )
    if not kept:
        return ""
    total = sum(after.breakdown.get(name, 0.0) - before.breakdown.get(name, 0.0) for name in _PHASES)
    parts = ", ".join(f"{name} {_milliseconds(changes[name])}" for name in kept)
    return f"a step against the accepted record: {parts}, all phases {_milliseconds(total)}"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1e3, 3) + 0.0:+.3g} ms"
