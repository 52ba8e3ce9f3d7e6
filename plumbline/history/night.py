"""Tonight's decisions over all lines of a platform, and what they say: findings, entries of the series, sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from plumbline.history.decision import Answers, Decision, Past, Software, decide
from plumbline.history.limits import Allowed
from plumbline.history.segments import Line, past_of
from plumbline.history.series import CallEntry
from plumbline.schema.verdict import Finding

__all__ = ["LineDecision", "call_entry", "finding_of", "judge_lines", "sentence"]

_WORDS: Mapping[str, str] = {
    "quiet": "no detector asks",
    "learning": "too few nights for a reference",
    "missing": "no finite value tonight",
    "open-question": "a detector asks, and no experiment has answered yet",
    "went-away": "a detector asked; reruns of tonight do not show it",
    "software": "an interleaved A/B on one machine shows it: the software",
    "machine": "reruns show it, and it is not the software: the machine of this night",
    "unconfirmed": "reruns show it; no A/B tells software from machine",
    "lasting": "the loss lasts over several nights",
    "anchor": "the cumulative loss against the first acceptance is over its limit",
    "too-small": "confirmed, and smaller than what counts",
    "improved": "better than the reference for several nights: accept a new baseline",
    "open-call": "called on an earlier night, and not gone",
    "shift": "a shift of cost within the step: the whole did not lose",
    "recovered": "an earlier loss is gone",
}


@dataclass(frozen=True, slots=True)
class LineDecision:
    """The decision on one metric of one workload."""

    line: Line
    past: Past
    """The nights before tonight."""
    decision: Decision
    shifted: bool = False
    """A part grew while its whole did not lose: no drift."""
    recovered: bool = False
    note: str = ""
    """What else is known of the software, the reruns or the phases, for the sentence."""

    @property
    def verdict(self) -> Literal["pass", "drift", "inconclusive"]:
        """The outcome that counts."""
        return "pass" if self.shifted else self.decision.verdict

    @property
    def needs(self) -> str:
        """The experiment that counts: a shift of cost needs none."""
        return "" if self.shifted else self.decision.needs

    @property
    def reason(self) -> str:
        """The reason that counts."""
        return "shift" if self.shifted else "recovered" if self.recovered else self.decision.reason


def judge_lines(
    lines: Sequence[Line],
    allowed: Allowed,
    answers: Mapping[tuple[str, str], Answers] | None = None,
    software: Mapping[tuple[str, str], Software] | None = None,
) -> tuple[LineDecision, ...]:
    """Decide on the last night of every line; `answers` and `software` by (workload, metric).

    A part of the step that asks while the whole is quiet is a shift of cost: it needs no experiment.
    """
    found: list[LineDecision] = []
    for line in lines:
        last = len(line.values) - 1
        past = past_of(line, until=last)
        tonight = float(line.metric.scores(line.values[last:])[0])
        key = (line.workload, line.metric.name)
        given = (answers or {}).get(key, Answers())
        decision = decide(past, tonight, allowed, given, software=(software or {}).get(key, "can-differ"))
        gone = past.call is not None and decision.verdict == "pass"
        found.append(LineDecision(line, past, decision, recovered=gone))
    wholes = {(one.line.workload, one.line.metric.name): one.decision.verdict for one in found}
    return tuple(
        replace(one, shifted=True)
        if one.line.metric.part_of
        and one.decision.verdict != "pass"
        and one.decision.reason not in ("missing", "learning")
        and wholes.get((one.line.workload, one.line.metric.part_of)) == "pass"
        else one
        for one in found
    )


def call_entry(one: LineDecision) -> CallEntry | None:
    """Return what the series file keeps of a decision; `None` where it was quiet."""
    line, decision = one.line, one.decision
    if one.reason in ("quiet", "learning", "missing", "open-call", "improved"):
        return None
    onset = decision.onset
    new = decision.new and not one.shifted and onset is not None
    return CallEntry(
        record=line.records[-1],
        metric=line.metric.name,
        verdict=one.verdict,
        reason=one.reason,
        new=new,
        answered=decision.reason == "machine" and decision.difference is not None,
        since=line.times[min(onset.index, len(line.times) - 1)] if onset else None,
        shape=onset.shape if onset else "",
        centre=decision.reference.centre if decision.reference else None,
        size=max(onset.size, 0.0) if onset else None,
        low=decision.low,
        high=decision.high,
        cause="software" if decision.reason == "software" else None,
    )


def finding_of(one: LineDecision) -> Finding:
    """Return a decision as a finding: the relative change tonight, its limit, and a sentence."""
    line, decision = one.line, one.decision
    reference = decision.reference
    against = f"reference of {reference.count} nights" if reference else ""
    observed = line.metric.change(decision.size) if decision.size is not None else None
    limit = None
    if reference is not None and decision.asks:
        limit = line.metric.change(decision.asks[0].limit * reference.spread)
    return Finding(
        check=f"history.{line.metric.name}",
        outcome=one.verdict,
        metric=f"change of {line.metric.name} against the reference",
        observed=observed if observed is None or np.isfinite(observed) else None,
        limit=limit if limit is None or np.isfinite(limit) else None,
        unit=line.metric.scale,
        against=against,
        detail=sentence(one),
    )


def sentence(one: LineDecision) -> str:
    """Return what a decision says: since when, how much, how sure, and why."""
    line, decision = one.line, one.decision
    parts = [f"{line.workload}: {line.metric.name}"]
    if decision.size is not None and one.reason not in ("quiet", "learning"):
        parts.append(_size(one))
    if decision.onset is not None:
        index = min(decision.onset.index, len(line.times) - 1)
        parts.append(f"since {line.day(index)}, round {line.rounds[index]} ({decision.onset.shape})")
    elif decision.reason == "open-call":
        entry = next((call.entry for call in reversed(line.calls) if call.entry.new), None)
        if entry is not None and entry.since is not None and entry.since in line.times:
            index = line.times.index(entry.since)
            parts.append(f"since {line.day(index)}, round {line.rounds[index]}")
    parts.append(_WORDS[one.reason])
    if decision.asks:
        parts.append(
            "asked by: " + ", ".join(f"{ask.kind} {ask.score:.3g} over {ask.limit:.3g}" for ask in decision.asks)
        )
    if decision.difference is not None:
        parts.append(f"A/B of {decision.difference.num_runs} runs: p = {decision.difference.p_value:.2g}")
    if one.note and one.reason not in ("quiet", "learning", "missing", "went-away", "open-call", "improved"):
        parts.append(one.note)
    return "; ".join(parts)


def _size(one: LineDecision) -> str:
    change, decision = one.line.metric.change, one.decision
    form = "{:+.2%}" if one.line.metric.scale == "relative" else "{:+.4f}"
    text = form.format(change(decision.size or 0.0))
    if decision.low is None or decision.high is None:
        return text
    ends = sorted((change(decision.low), change(decision.high)))
    return f"{text} (95% interval {form.format(ends[0])} to {form.format(ends[1])})"
