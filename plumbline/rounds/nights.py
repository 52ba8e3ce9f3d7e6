"""Tonight's records against the series of earlier nights: decisions, reruns that they ask for, findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from plumbline.history.engine import Answers, Software
from plumbline.history.equivalence import equivalence
from plumbline.history.limits import Allowed, allowed_for
from plumbline.history.metrics import METRICS, read_metrics
from plumbline.history.night import LineDecision, call_entry, finding_of, judge_lines, sentence
from plumbline.history.segments import Line, lines_of, past_of
from plumbline.history.series import CallEntry, JudgedRound, NightRow, SeriesFile, extended, row_of
from plumbline.judge.gates.throughput import CHECK
from plumbline.records import LoadedRecord
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.plan import MAIN, RERUN, Assignment, Round
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import Cause, Finding, PlatformResult, worst

__all__ = [
    "History",
    "NightDecisions",
    "apply_nights",
    "decide_nights",
    "limits_of",
    "night_reruns",
    "unjudged_nights",
    "with_equivalence",
]

Results = Mapping[str, Mapping[str, PlatformResult]]
"""By workload, then by platform."""

_SPEED = frozenset({"throughput", "slow_step", "data_wait", "peak_memory", "first_step"})
"""Metrics that a rerun of the speed part measures again."""
_NUM_RERUNS = 4
_ACCURACY_NIGHTS = 14
"""Of the newest nights, those whose accuracies are tested together."""


@dataclass(frozen=True, slots=True)
class History:
    """What earlier nights left: by platform the series, and by platform and workload the times of the acceptances."""

    series: Mapping[str, SeriesFile] = field(default_factory=dict)
    accepted: Mapping[str, Mapping[str, Sequence[datetime]]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NightDecisions:
    """The engine's decisions of one night, and the rows to add to the series."""

    decisions: Mapping[str, tuple[LineDecision, ...]] = field(default_factory=dict)
    rows: Mapping[str, tuple[NightRow, ...]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def entries(self, platform: str) -> list[CallEntry]:
        """Return what the series file keeps of a platform's decisions."""
        found = [call_entry(one) for one in self.decisions.get(platform, ())]
        return [entry for entry in found if entry is not None]


def limits_of(suite: Suite) -> Allowed:
    """Return the limits of the engine under a suite's gates."""
    platforms = len(suite.platforms)
    return allowed_for(
        num_platforms=platforms,
        num_series=platforms * len(suite.workloads) * len(METRICS),
        false_alarms_a_year=suite.gates.false_alarms_a_year,
        num_reruns=_NUM_RERUNS,
        anchor_limit=suite.gates.throughput_drop / 2,
    )


def decide_nights(round_: Round, found: GatheredRecords, history: History) -> NightDecisions:
    """Decide on every metric of every platform that has a record tonight; reruns found answer the first question."""
    allowed = limits_of(round_.suite)
    decisions: dict[str, tuple[LineDecision, ...]] = {}
    rows: dict[str, tuple[NightRow, ...]] = {}
    for platform in round_.suite.platforms:
        tonight = [record for one, record in found.records.items() if (one.platform, one.what) == (platform, MAIN)]
        new = [row for row in (row_of(record.record) for record in tonight) if row is not None]
        if not new:
            continue
        rows[platform] = tuple(new)
        if platform in history.damaged:
            continue
        series = extended(history.series.get(platform, SeriesFile(suite=round_.suite.name, platform=platform)), new)
        ids = {row.record for row in new}
        lines = [
            line for line in lines_of(series, METRICS, history.accepted.get(platform, {})) if line.records[-1] in ids
        ]
        software = {row.workload: _software(series, row) for row in new}
        answers = _answers(lines, found, platform)
        decisions[platform] = judge_lines(lines, allowed, answers, software)
    return NightDecisions(decisions, rows, history.damaged)


def _software(series: SeriesFile, row: NightRow) -> Software:
    """Equal to that of the last twenty nights of this workload; else it cannot be rebuilt on the worker yet."""
    keys = {series.words[series.software[place]] for place in series.places(row.workload)[-20:]}
    return "equal" if keys == {row.software} else "unavailable"


def _answers(lines: Sequence[Line], found: GatheredRecords, platform: str) -> dict[tuple[str, str], Answers]:
    """Return the reruns' values by workload and metric; what no rerun measures is answered by the night itself."""
    answers: dict[tuple[str, str], Answers] = {}
    for line in lines:
        key = (line.workload, line.metric.name)
        if line.metric.name not in _SPEED:
            last = len(line.values) - 1
            answers[key] = Answers(reruns=tuple(line.metric.scores(line.values[last:]).tolist()))
            continue
        runs = _reruns(found, platform, line.workload)
        if runs:
            values = [read_metrics(record.record).get(line.metric.name) for record in runs]
            answers[key] = Answers(reruns=tuple(line.metric.scores(values).tolist()))
    return answers


def _reruns(found: GatheredRecords, platform: str, workload: str) -> list[LoadedRecord]:
    return [
        record
        for one, record in found.records.items()
        if (one.platform, one.workload) == (platform, workload) and one.what.startswith(RERUN)
    ]


def night_reruns(nights: NightDecisions) -> tuple[Assignment, ...]:
    """Return the reruns that open questions ask for, each workload of a platform once."""
    wanted = {
        (platform, one.line.workload): None
        for platform, lot in nights.decisions.items()
        for one in lot
        if one.decision.needs == "reruns" and one.line.metric.name in _SPEED
    }
    names = [RERUN, *(f"{RERUN}-{number}" for number in range(2, _NUM_RERUNS + 1))]
    return tuple(Assignment(platform, workload, name) for platform, workload in wanted for name in names)


def apply_nights(
    results: Results, nights: NightDecisions, accuracy_margin: float = 0.02
) -> dict[str, dict[str, PlatformResult]]:
    """Return the results with the engine's findings; where it has a reference, it replaces the single-baseline gate."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for platform, lot in nights.decisions.items():
        for workload, platforms in changed.items():
            if platform in platforms:
                mine = [one for one in lot if one.line.workload == workload]
                applied = _applied(platforms[platform], mine)
                platforms[platform] = with_equivalence(applied, mine, accuracy_margin)
    for platform, why in nights.damaged.items():
        for platforms in changed.values():
            if platform in platforms:
                finding = Finding(check="history.series", outcome="invalid", detail=why)
                platforms[platform] = _with_findings(platforms[platform], [finding])
    return changed


def _applied(result: PlatformResult, decided: Sequence[LineDecision]) -> PlatformResult:
    findings, causes, notes = [], [], []
    improved = []
    for one in decided:
        reason = one.reason
        if reason in ("machine", "unconfirmed") and one.line.metric.name not in _SPEED:
            notes.append(f"one night alone: {sentence(one)}")
            continue
        if reason in ("quiet", "learning", "missing"):
            continue
        findings.append(finding_of(one))
        if reason == "improved":
            improved.append(one.line.metric.name)
        if one.verdict == "drift":
            causes.append(_cause(one))
    judged = _without_gate(result, decided)
    codes = {cause.code for cause in judged.causes}
    causes = [cause for cause in causes if cause.code not in codes and not (codes and cause.code == "unattributed")]
    changed = _with_findings(judged, findings)
    return changed.replace(
        causes=(*changed.causes, *{cause.code: cause for cause in causes}.values()),
        notes=(*changed.notes, *notes),
        improved=tuple(improved),
    )


def with_equivalence(result: PlatformResult, decided: Sequence[LineDecision], margin: float) -> PlatformResult:
    """Add what the last nights' accuracies show together: one pair of runs alone often resolves nothing."""
    line = next((one.line for one in decided if one.line.metric.name == "accuracy"), None)
    reference = next((one.decision.reference for one in decided if one.line is line and line is not None), None)
    if line is None or reference is None:
        return result
    past = past_of(line)
    values = [-value for value in past.values[past.level :].tolist()]
    newest = values[max(len(values) - _ACCURACY_NIGHTS, reference.count) :]
    found = equivalence(values[: reference.count], newest, margin)
    if found is None:
        return result
    words = (
        f"accuracy of the last {len(newest)} nights: {found.outcome} within {margin:g} "
        f"(difference {found.difference:+.4f}, 90% interval {found.low:+.4f} to {found.high:+.4f}); "
        f"these nights resolve {found.resolvable:.4f}, {margin:g} takes {found.runs_needed} nights a side"
    )
    if found.outcome == "different":
        finding = Finding(
            check="history.accuracy.equivalence", outcome="drift", metric="difference of the mean accuracy",
            observed=found.difference, limit=margin, unit="absolute", against=f"{reference.count} nights", detail=words,
        )  # fmt: skip
        return _with_findings(result, [finding])
    if found.outcome == "equivalent":
        # One pair of runs that is not equal to the bit says less than these nights do.
        findings = tuple(
            one.replace(outcome="pass", detail=f"{one.detail}; {words}")
            if one.check == "learn.accuracy" and one.outcome == "inconclusive" and one.against.startswith("baseline")
            and one.observed is not None
            else one
            for one in result.findings
        )  # fmt: skip
        result = result.replace(findings=findings, verdict=worst([one.outcome for one in findings]))
    return result.replace(notes=(*result.notes, words))


def _with_findings(result: PlatformResult, findings: Sequence[Finding]) -> PlatformResult:
    verdict = worst([result.verdict, *(finding.outcome for finding in findings)])
    return result.replace(verdict=verdict, findings=(*result.findings, *findings))


def _without_gate(result: PlatformResult, decided: Sequence[LineDecision]) -> PlatformResult:
    """Withdraw a throughput finding against one accepted run, where the reference of many nights does not show it."""
    throughput = next((one for one in decided if one.line.metric.name == "throughput"), None)
    if throughput is None or throughput.decision.reference is None or throughput.verdict != "pass":
        return result
    gate = [one for one in result.findings if one.check == CHECK and one.outcome in ("drift", "inconclusive")]
    if not gate or throughput.decision.needs:
        return result
    words = f"withdrawn: the reference of {throughput.decision.reference.count} nights does not show it"
    findings = tuple(
        one.replace(outcome="pass", detail=f"{one.detail}; {words}") if one in gate else one for one in result.findings
    )
    verdict = worst([one.outcome for one in findings])
    slow = {"loader", "transfer", "throttling", "slow-device", "contention", "software"}
    causes = tuple(one for one in result.causes if one.code not in slow and verdict == "drift")
    return result.replace(verdict=verdict, findings=findings, causes=causes)


def _cause(one: LineDecision) -> Cause:
    """Return the cause of a drift over the nights: software by experiment, the machine where the software is equal."""
    decision = one.decision
    if decision.reason == "software":
        return Cause(code="software", sure="confirmed", why=sentence(one))
    return Cause(code="unattributed", sure="unattributed", why=sentence(one))


def unjudged_nights(series: SeriesFile, tonight: JudgedRound) -> int:
    """Return the number of nights in a row, tonight included, that were inconclusive or without a baseline."""
    count = 0
    for one in [tonight, *reversed(series.judged.values())]:
        if one.verdict != "inconclusive" and one.has_baseline:
            break
        count += 1
    return count
