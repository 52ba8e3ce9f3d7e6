"""Decisions on tonight's records against earlier nights, with their reruns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from plumbline.rounds.judging import Baselines
from plumbline.rounds.plan import AB, MAIN, RERUN, Assignment, Round
from plumbline.rounds.software import (
    MACHINE_CODES,
    SoftwareChange,
    ab_answers,
    machine_cause,
    software_change,
    with_ab,
)
from plumbline.schema.ab import AbEvidence
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import Cause, Finding, PlatformResult, worst

__all__ = [
    "History",
    "NightDecisions",
    "apply_nights",
    "decide_nights",
    "limits_of",
    "night_abs",
    "night_reruns",
    "unjudged_nights",
    "with_equivalence",
]

Results = Mapping[str, Mapping[str, PlatformResult]]
"""By workload, then by platform."""

_SPEED = frozenset({"throughput", "slow_step", "data_wait", "peak_memory", "first_step"})
"""Metrics that a rerun of the speed part measures again."""
_SAME_NIGHTS = 20
"""Without an accepted baseline, the software of as many nights is taken for the reference's."""
_ACCURACY_NIGHTS = 14
"""Number of newest nights whose accuracies are tested together."""


@dataclass(frozen=True, slots=True)
class History:
    """Series by platform, and times of accepted records by platform and workload."""

    series: Mapping[str, SeriesFile] = field(default_factory=dict)
    accepted: Mapping[str, Mapping[str, Sequence[datetime]]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NightDecisions:
    """Decisions of one night, with the rows to append to the series."""

    decisions: Mapping[str, tuple[LineDecision, ...]] = field(default_factory=dict)
    rows: Mapping[str, tuple[NightRow, ...]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[tuple[str, str], SoftwareChange] = field(default_factory=dict)
    """By (platform, workload)."""
    signs: Mapping[tuple[str, str], Cause] = field(default_factory=dict)
    """By (platform, workload): what the samplers of every run name, where it is the machine."""

    def entries(self, platform: str) -> list[CallEntry]:
        """Return a platform's decisions as entries of the series file."""
        entries = [call_entry(decision) for decision in self.decisions.get(platform, ())]
        return [entry for entry in entries if entry is not None]


def limits_of(suite: Suite) -> Allowed:
    """Return the engine's limits under a suite's gates."""
    platforms = len(suite.platforms)
    return allowed_for(
        num_platforms=platforms,
        num_series=platforms * len(suite.workloads) * len(METRICS),
        false_alarms_a_year=suite.gates.false_alarms_a_year,
        asks_a_year=suite.gates.questions_a_year,
        num_reruns=suite.dispatch.reruns,
        num_blocks=suite.dispatch.ab_blocks,
        anchor_limit=suite.gates.throughput_drop / 2,
    )


def decide_nights(
    round_: Round, gathered: GatheredRecords, history: History, baselines: Baselines | None = None
) -> NightDecisions:
    """Decide on every metric of every platform that has a record tonight.

    Reruns answer the first question, an A/B the second one.
    """
    allowed = limits_of(round_.suite)
    decisions: dict[str, tuple[LineDecision, ...]] = {}
    rows: dict[str, tuple[NightRow, ...]] = {}
    changes: dict[tuple[str, str], SoftwareChange] = {}
    signs: dict[tuple[str, str], Cause] = {}
    for platform in round_.suite.platforms:
        tonight = [record for one, record in gathered.records.items() if (one.platform, one.what) == (platform, MAIN)]
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
        for row in new:
            runs = [
                gathered.records[Assignment(platform, row.workload, MAIN)],
                *_reruns(gathered, platform, row.workload),
            ]
            baseline = (baselines or {}).get(row.workload, {}).get(platform)
            changes[platform, row.workload] = _change(round_, gathered, platform, row, series, runs[0], baseline)
            cause = machine_cause(baseline, runs)
            if cause is not None:
                signs[platform, row.workload] = cause
        answers = _answers(lines, gathered, platform)
        mine = {workload: change for (name, workload), change in changes.items() if name == platform}
        asked = judge_lines(lines, allowed, answers, _states(lines, mine))
        answers = _with_abs(asked, gathered, platform, answers)
        decided = judge_lines(lines, allowed, answers, _states(lines, mine))
        decisions[platform] = tuple(replace(one, note=mine[one.line.workload].note) for one in decided)
    return NightDecisions(decisions, rows, history.damaged, changes, signs)


def _change(  # noqa: PLR0917 - all that is known of one platform's software
    round_: Round, gathered: GatheredRecords, platform: str, row: NightRow, series: SeriesFile,
    tonight: LoadedRecord, baseline: LoadedRecord | None,
) -> SoftwareChange:  # fmt: skip
    """Return tonight's software against the baseline's, with what an A/B of this round came to."""
    keys = {series.words[series.software[place]] for place in series.places(row.workload)[-_SAME_NIGHTS:]}
    change = software_change(
        baseline.record.fingerprint if baseline is not None else None,
        tonight.record.fingerprint,
        round_.suite.dispatch,
        same_for_weeks=keys == {row.software},
    )
    lost = next((one.why for key, one in gathered.absent.items() if _is_ab(key, platform, row.workload)), "")
    return with_ab(change, _ab_evidence(gathered, platform, row.workload), lost)


def _is_ab(assignment: Assignment, platform: str, workload: str) -> bool:
    return (assignment.platform, assignment.workload, assignment.what) == (platform, workload, AB)


def _ab_evidence(gathered: GatheredRecords, platform: str, workload: str) -> AbEvidence | None:
    return next(
        (one.record.evidence.ab for key, one in gathered.records.items() if _is_ab(key, platform, workload)), None
    )


def _states(lines: Sequence[Line], changes: Mapping[str, SoftwareChange]) -> dict[tuple[str, str], Software]:
    """Return by (workload, metric) whether the software may differ; an A/B measures nothing but the speed part."""
    states: dict[tuple[str, str], Software] = {}
    for line in lines:
        state = changes[line.workload].state
        measured = line.metric.name in _SPEED
        states[line.workload, line.metric.name] = "unavailable" if state == "can-differ" and not measured else state
    return states


def _with_abs(
    asked: Sequence[LineDecision], gathered: GatheredRecords, platform: str, answers: Mapping[tuple[str, str], Answers]
) -> dict[tuple[str, str], Answers]:
    """Return the answers with the runs of the A/B, whose level is divided by the lines that asked for it."""
    changed = dict(answers)
    for workload in {one.line.workload for one in asked}:
        evidence = _ab_evidence(gathered, platform, workload)
        wanting = [one.line for one in asked if one.line.workload == workload and one.decision.needs == "ab"]
        for line in wanting:
            key = (workload, line.metric.name)
            if evidence is not None:
                changed[key] = ab_answers(changed.get(key, Answers()), evidence, line.metric, len(wanting))
    return changed


def night_abs(nights: NightDecisions) -> tuple[Assignment, ...]:
    """Return the A/B of each platform that open questions ask for: one, of the workload that is worst off."""
    found = []
    for platform, lot in nights.decisions.items():
        wanting = [one for one in lot if one.decision.needs == "ab" and one.decision.rerun is not None]
        worst_first = sorted(wanting, key=lambda one: -one.decision.rerun.z if one.decision.rerun else 0.0)
        for one in worst_first[:1]:
            change = nights.software.get((platform, one.line.workload))
            if change is not None and change.order is not None:
                title = "A/B: tonight's environment against the baseline's"
                found.append(Assignment(platform, one.line.workload, AB, title=title, ab=change.order))
    return tuple(found)


def _answers(lines: Sequence[Line], gathered: GatheredRecords, platform: str) -> dict[tuple[str, str], Answers]:
    """Return the reruns' values by workload and metric, else tonight's own."""
    answers: dict[tuple[str, str], Answers] = {}
    for line in lines:
        key = (line.workload, line.metric.name)
        if line.metric.name not in _SPEED:
            last = len(line.values) - 1
            answers[key] = Answers(reruns=tuple(line.metric.scores(line.values[last:]).tolist()))
            continue
        runs = _reruns(gathered, platform, line.workload)
        if runs:
            values = [read_metrics(record.record).get(line.metric.name) for record in runs]
            answers[key] = Answers(reruns=tuple(line.metric.scores(values).tolist()))
    return answers


def _reruns(gathered: GatheredRecords, platform: str, workload: str) -> list[LoadedRecord]:
    return [
        record
        for assignment, record in gathered.records.items()
        if (assignment.platform, assignment.workload) == (platform, workload) and assignment.what.startswith(RERUN)
    ]


def night_reruns(nights: NightDecisions, num_reruns: int = 4) -> tuple[Assignment, ...]:
    """Return the reruns for open questions, once per workload and platform."""
    wanted = {
        (platform, decision.line.workload): None
        for platform, lot in nights.decisions.items()
        for decision in lot
        if decision.decision.needs == "reruns" and decision.line.metric.name in _SPEED
    }
    names = [RERUN, *(f"{RERUN}-{number}" for number in range(2, num_reruns + 1))]
    return tuple(Assignment(platform, workload, name) for platform, workload in wanted for name in names)


def apply_nights(
    results: Results, nights: NightDecisions, accuracy_margin: float = 0.02
) -> dict[str, dict[str, PlatformResult]]:
    """Add the engine's findings; its reference replaces the single-baseline gate."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for platform, lot in nights.decisions.items():
        for workload, platforms in changed.items():
            if platform in platforms:
                mine = [one for one in lot if one.line.workload == workload]
                change = nights.software.get((platform, workload), SoftwareChange("unavailable"))
                applied = _applied(platforms[platform], mine, change, nights.signs.get((platform, workload)))
                platforms[platform] = with_equivalence(applied, mine, accuracy_margin)
    for platform, why in nights.damaged.items():
        for platforms in changed.values():
            if platform in platforms:
                finding = Finding(check="history.series", outcome="invalid", detail=why)
                platforms[platform] = _with_findings(platforms[platform], [finding])
    return changed


def _applied(
    result: PlatformResult, decided: Sequence[LineDecision], change: SoftwareChange, signs: Cause | None
) -> PlatformResult:
    findings, causes, notes = [], [], []
    improved = []
    for decision in decided:
        reason = decision.reason
        if reason in ("machine", "unconfirmed") and decision.line.metric.name not in _SPEED:
            notes.append(f"a single night: {sentence(decision)}")
            continue
        if reason in ("quiet", "learning", "missing"):
            continue
        findings.append(finding_of(decision))
        if reason == "improved":
            improved.append(decision.line.metric.name)
        if decision.verdict == "drift":
            causes.append(_cause(decision, change, signs))
    judged = _with_ab_answer(_without_gate(result, decided), decided, change, signs)
    codes = {cause.code for cause in judged.causes}
    causes = [cause for cause in causes if cause.code not in codes and not (codes and cause.code == "unattributed")]
    changed = _with_findings(judged, findings)
    return changed.replace(
        causes=(*changed.causes, *{cause.code: cause for cause in causes}.values()),
        notes=(*changed.notes, *notes),
        improved=tuple(improved),
    )


def with_equivalence(result: PlatformResult, decided: Sequence[LineDecision], margin: float) -> PlatformResult:
    """Add the equivalence of the last nights' accuracies."""
    line = next((made.line for made in decided if made.line.metric.name == "accuracy"), None)
    reference = next((made.decision.reference for made in decided if made.line is line and line is not None), None)
    if line is None or reference is None:
        return result
    past = past_of(line)
    values = [-value for value in past.values[past.level :].tolist()]
    newest = values[max(len(values) - _ACCURACY_NIGHTS, reference.count) :]
    test = equivalence(values[: reference.count], newest, margin)
    if test is None:
        return result
    detail = (
        f"accuracy of the last {len(newest)} nights: {test.outcome} within {margin:g} "
        f"(difference {test.difference:+.4f}, 90% interval {test.low:+.4f} to {test.high:+.4f}); "
        f"these nights resolve {test.resolvable:.4f}, {margin:g} takes {test.runs_needed} nights a side"
    )
    if test.outcome == "different":
        finding = Finding(
            check="history.accuracy.equivalence", outcome="drift", metric="difference of the mean accuracy",
            observed=test.difference, limit=margin, unit="absolute", against=f"{reference.count} nights",
            detail=detail,
        )  # fmt: skip
        return _with_findings(result, [finding])
    if test.outcome == "equivalent":
        # A pair of runs that is not bitwise equal shows less than these nights.
        findings = tuple(
            finding.replace(outcome="pass", detail=f"{finding.detail}; {detail}")
            if finding.check == "learn.accuracy" and finding.outcome == "inconclusive"
            and finding.against.startswith("baseline") and finding.observed is not None
            else finding
            for finding in result.findings
        )  # fmt: skip
        result = result.replace(findings=findings, verdict=worst([finding.outcome for finding in findings]))
    return result.replace(notes=(*result.notes, detail))


def _with_findings(result: PlatformResult, findings: Sequence[Finding]) -> PlatformResult:
    verdict = worst([result.verdict, *(finding.outcome for finding in findings)])
    return result.replace(verdict=verdict, findings=(*result.findings, *findings))


def _without_gate(result: PlatformResult, decided: Sequence[LineDecision]) -> PlatformResult:
    """Withdraw a throughput finding that the reference of many nights contradicts."""
    throughput = next((decision for decision in decided if decision.line.metric.name == "throughput"), None)
    if throughput is None or throughput.decision.reference is None or throughput.verdict != "pass":
        return result
    gate = [
        finding
        for finding in result.findings
        if finding.check == CHECK and finding.outcome in ("drift", "inconclusive")
    ]
    if not gate or throughput.decision.needs:
        return result
    text = f"withdrawn: the reference of {throughput.decision.reference.count} nights does not show it"
    findings = tuple(
        finding.replace(outcome="pass", detail=f"{finding.detail}; {text}") if finding in gate else finding
        for finding in result.findings
    )
    verdict = worst([finding.outcome for finding in findings])
    slow = {"loader", "transfer", "throttling", "slow-device", "contention", "software"}
    causes = tuple(cause for cause in result.causes if cause.code not in slow and verdict == "drift")
    return result.replace(verdict=verdict, findings=findings, causes=causes)


def _with_ab_answer(
    result: PlatformResult, decided: Sequence[LineDecision], change: SoftwareChange, signs: Cause | None
) -> PlatformResult:
    """Correct the causes that a gate read from signs alone: an A/B on the machine outweighs them."""
    answered = [one for one in decided if one.decision.difference is not None]
    named = next((one for one in answered if one.decision.reason == "software"), None)
    if named is not None:
        others = tuple(one for one in result.causes if one.code not in {*MACHINE_CODES, "software", "unattributed"})
        return result.replace(causes=(*others, _cause(named, change, signs)))
    if answered and any(one.code == "software" for one in result.causes):
        others = tuple(one for one in result.causes if one.code != "software")
        return result.replace(causes=(*others, _cause(answered[0], change, signs)))
    return result


def _cause(one: LineDecision, change: SoftwareChange, signs: Cause | None) -> Cause:
    """Return the cause of a drift over the nights: software by experiment, else what the machine's signs name."""
    decision, words = one.decision, sentence(one)
    tried: tuple[str, ...] = ()
    if decision.difference is not None:
        shown = "shows" if decision.reason == "software" else "does not show"
        p_value = f"p = {decision.difference.p_value:.2g}"
        tried = (f"an A/B of {decision.difference.num_runs} runs on one machine {shown} a difference: {p_value}",)
    if decision.reason == "software":
        return Cause(code="software", sure="confirmed", why=words, suspects=change.changes, tried=tried)
    if signs is not None and one.line.metric.name in _SPEED:
        return signs.replace(why=f"{signs.why}; {words}", tried=tried)
    return Cause(code="unattributed", sure="unattributed", why=words, tried=tried)


def unjudged_nights(series: SeriesFile, tonight: JudgedRound) -> int:
    """Return the number of consecutive unjudged nights, including tonight."""
    count = 0
    for judged in [tonight, *reversed(series.judged.values())]:
        if judged.verdict != "inconclusive" and judged.has_baseline:
            break
        count += 1
    return count
