"""Tonight's decisions on all metrics of a platform, and their series-file entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from plumbline.judge.history.allowed import NIGHTS_A_YEAR, Allowed
from plumbline.judge.history.decision import Answers, Decision, Past, Software, has_recovered
from plumbline.judge.history.engine import decide
from plumbline.judge.history.segments import MetricHistory, past_of
from plumbline.judge.statistics.changepoints import ChangePoint, changes
from plumbline.schema import limits
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
        key = (history.workload, history.metric.name)
        given, may_differ = (answers or {}).get(key, Answers()), (software or {}).get(key, "can-differ")
        decisions[key] = _judged(history, len(history.values) - 1, allowed, given, may_differ)
    return tuple(
        replace(judged, shifted=_is_shift(judged, decisions.get((workload, judged.line.metric.part_of))))
        for (workload, _), judged in decisions.items()
    )


def _judged(history: MetricHistory, night: int, allowed: Allowed, answers: Answers, software: Software) -> LineDecision:
    past, tonight = past_of(history, until=night), float(history.metric.scores(history.values[night : night + 1])[0])
    decision = decide(past, tonight, allowed.of(history.metric.name), answers, software=software)
    return LineDecision(history, past, decision, recovered=has_recovered(past, decision))


def _is_shift(part: LineDecision, whole: LineDecision | None) -> bool:
    is_worse = part.decision.verdict != "pass" or part.decision.reason == "machine"
    is_judged = part.decision.reason not in ("missing", "learning")
    return is_worse and is_judged and whole is not None and whole.decision.verdict == "pass"


def call_entry(judged: LineDecision, night: int = -1) -> CallEntry | None:
    """Convert the decision on a night to a series-file entry; `None` if not worth recording."""
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
        record=history.records[night], metric=history.metric.name, verdict=judged.verdict, reason=judged.reason,
        new=decision.new and not judged.shifted and onset is not None,
        answered=question.is_cleared if question is not None else decision.is_cleared,
        since=history.times[begin] if begin is not None else None, shape=onset.shape if onset else "",
        centre=decision.reference.centre if decision.reference else None,
        size=size if size is None or judged.reason == "improved" else max(size, 0.0),
        low=decision.low, high=decision.high, cause="software" if decision.reason == "software" else None,
        lead=decision.lead if math.isfinite(decision.lead) else None, open_calls=decision.open_calls,
    )  # fmt: skip


def walked(history: MetricHistory, allowed: Allowed) -> LineDecision:
    """Return the newest decision of a walk over a file's nights, with a history that has all of them.

    The whole series shows its changes of level: by hindsight no other night but the newest has a decision.
    """
    limit, last = allowed.of(history.metric.name), len(history.values) - 1
    level = min(limits.LEVEL / 2, NIGHTS_A_YEAR * allowed.lasting_alpha)
    starts = sorted({0, *(boundary.index for boundary in history.boundaries if boundary.ends_comparison)})
    shown: dict[int, ChangePoint | None] = {last: None}
    for start, end in pairwise([*starts, last + 1]):
        part = history.values[start:end]
        for change in changes(np.array(part, dtype=np.float64), level=level):
            before, after = history.metric.scores([change.before, change.after]).tolist()
            dated = replace(change, index=start + change.index, last=start + change.last)
            shown[dated.last] = replace(dated, before=before, after=after)
    for night in sorted(shown):
        decided = _judged(history, night, limit, Answers(is_whole=True, change=shown[night]), "unavailable")
        if (entry := call_entry(decided, night)) is not None:
            history = replace(history, calls=(*history.calls, (night, entry)))
    return replace(decided, line=history)
