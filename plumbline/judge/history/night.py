"""Tonight's decisions on all metrics of a platform, and their series-file entries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Answers, Decision, Past, Software
from plumbline.judge.history.engine import decide
from plumbline.judge.history.segments import MetricHistory, past_of
from plumbline.judge.history.state import has_recovered
from plumbline.judge.statistics.changepoints import changes
from plumbline.judge.statistics.samples import Values
from plumbline.schema.series import CallEntry


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
        """Return the final verdict; a slower phase in an equal step passes."""
        return "pass" if self.shifted else self.decision.verdict

    @property
    def needs(self) -> str:
        """Return the experiment to run; none if only step phases shifted."""
        return "" if self.shifted else self.decision.needs

    @property
    def reason(self) -> str:
        """Return the final reason, including phase shift and recovery."""
        return "shift" if self.shifted else "recovered" if self.recovered else self.decision.reason


def judge_lines(
    lines: Sequence[MetricHistory],
    allowed: Allowed,
    answers: Mapping[tuple[str, str], Answers] | None = None,
    software: Mapping[tuple[str, str], Software] | None = None,
) -> tuple[LineDecision, ...]:
    """Decide on the last night of every metric, keyed by (workload, metric).

    A part of the step that is worse while the whole is not is a shift of cost: it needs no experiment.
    """
    decisions: dict[tuple[str, str], LineDecision] = {}
    for history in lines:
        last, key = len(history.values) - 1, (history.workload, history.metric.name)
        past, tonight = past_of(history, until=last), float(history.metric.scores(history.values[last:]).item())
        given, may_differ = (answers or {}).get(key, Answers()), (software or {}).get(key, "can-differ")
        decision = decide(past, tonight, allowed.of(history.metric.name), given, software=may_differ)
        decisions[key] = LineDecision(history, past, decision, recovered=has_recovered(past, decision))
    return tuple(
        replace(judged, shifted=_is_shift(judged, decisions.get((workload, judged.line.metric.part_of))))
        for (workload, _), judged in decisions.items()
    )


def _is_shift(part: LineDecision, whole: LineDecision | None) -> bool:
    is_worse = part.decision.verdict != "pass" or part.decision.reason == "machine"
    is_judged = part.decision.reason not in ("missing", "learning")
    return is_worse and is_judged and whole is not None and whole.decision.verdict == "pass"


def call_entry(judged: LineDecision) -> CallEntry | None:
    """Convert a decision to a series-file entry; `None` if not worth recording."""
    history, decision = judged.line, judged.decision
    is_pending = judged.reason == "improved" and not decision.new
    if is_pending or judged.reason in ("quiet", "learning", "missing", "open-call", "too-small"):
        return None
    onset, question = decision.onset, decision.question
    # A shift of cost, which is no loss, opens no question.
    opened = None if judged.shifted else question
    begin = opened.since if opened else onset.index if onset else None
    size = opened.size if opened else onset.size if onset else None
    return CallEntry(
        record=history.records[-1], metric=history.metric.name, verdict=judged.verdict, reason=judged.reason,
        new=decision.new and not judged.shifted and onset is not None,
        answered=question.is_cleared if question is not None else decision.is_cleared,
        since=history.times[begin] if begin is not None else None, shape=onset.shape if onset else "",
        centre=decision.reference.centre if decision.reference else None,
        size=size if size is None or judged.reason == "improved" else max(size, 0.0),
        low=decision.low, high=decision.high, cause="software" if decision.reason == "software" else None,
        lead=decision.lead if math.isfinite(decision.lead) else None,
    )  # fmt: skip


def with_changes(history: MetricHistory, allowed: Allowed) -> MetricHistory:
    """Return the history with changes that its nights show without experiments.

    These are the changes of level that the whole series shows, and what the engine decides on the newest night, which
    may show a regression, or its end, before ranks can show a change.
    """
    scores = history.metric.scores(history.values)
    starts = sorted({0, *(boundary.index for boundary in history.boundaries if boundary.ends_comparison)})
    segments = pairwise([*starts, len(scores)])
    calls = tuple(call for start, end in segments for call in _events(history, scores[start:end], start, allowed))
    seen = replace(history, calls=calls)
    (decided,) = judge_lines([seen], allowed, software={(history.workload, history.metric.name): "unavailable"})
    entry = call_entry(decided)
    return seen if entry is None else replace(seen, calls=(*calls, (len(scores) - 1, entry)))


def _events(history: MetricHistory, scores: Values, start: int, allowed: Allowed) -> Iterator[tuple[int, CallEntry]]:
    """Yield changes in a series as gains, regressions or recoveries.

    A level that is better by the least change is the new reference. A level within it of the reference ends
    a regression.
    """
    found, is_lost = changes(scores, level=allowed.lasting_alpha), False
    centre, limited = found[0].before if found else 0.0, allowed.of(history.metric.name)
    for change in found:
        size, least, last = change.after - centre, limited.at(centre).least_change, start + change.last
        reason = "improved" if size < -least else "lasting" if size > least else "recovered"
        if reason != "recovered" or is_lost:
            yield last, CallEntry(
                record=history.records[last], metric=history.metric.name, reason=reason, new=reason != "recovered",
                verdict="drift" if reason == "lasting" else "pass", since=history.times[start + change.index],
                shape=change.shape, centre=centre, size=size, lead=None,
            )  # fmt: skip
        is_lost = reason == "lasting"
        centre = change.after if reason == "improved" else centre
