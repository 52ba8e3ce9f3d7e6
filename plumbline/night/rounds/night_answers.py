"""Results of tonight's reruns and A/B tests for the decision engine. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from plumbline.judge.history.decision import Answers, Software
from plumbline.judge.history.metrics import read_metrics
from plumbline.judge.history.night import LineDecision
from plumbline.judge.history.segments import MetricHistory
from plumbline.judge.rounds import rerun_problem
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.plan import AB, MAIN, RERUN, Assignment
from plumbline.night.rounds.software import SoftwareChange, ab_answers
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.experiment import AbEvidence

SPEED_METRICS = frozenset({"throughput", "slow_step", "data_wait", "peak_memory", "first_step"})
"""Metrics that a rerun of the speed part measures again."""


def rerun_answers(
    lines: Sequence[MetricHistory], gathered: GatheredRecords, platform: str
) -> dict[tuple[str, str], Answers]:
    """Return the reruns' values by workload and metric, or tonight's values.

    A rerun that is incomplete, or ran on a different machine class than tonight's training, has no value.
    """
    answers: dict[tuple[str, str], Answers] = {}
    for line in lines:
        key = (line.workload, line.metric.name)
        if line.metric.name not in SPEED_METRICS:
            last = len(line.values) - 1
            answers[key] = Answers(reruns=tuple(line.metric.scores(line.values[last:]).tolist()))
            continue
        if runs := rerun_records(gathered, platform, line.workload):
            main = gathered.records[Assignment(platform, line.workload, MAIN)]
            usable = [run for run in runs if not rerun_problem(main, run)]
            values = [read_metrics(record.record).get(line.metric.name) for record in usable]
            answers[key] = Answers(reruns=tuple(line.metric.scores(values).tolist()))
    return answers


def rerun_records(gathered: GatheredRecords, platform: str, workload: str) -> list[LoadedRecord]:
    """Return the records of tonight's reruns."""
    return [
        record
        for assignment, record in gathered.records.items()
        if (assignment.platform, assignment.workload) == (platform, workload) and assignment.what.startswith(RERUN)
    ]


def rerun_note(gathered: GatheredRecords, platform: str, workload: str) -> str:
    """Describe the reruns that do not count, or return ""."""
    main = gathered.records[Assignment(platform, workload, MAIN)]
    problems = Counter(rerun_problem(main, run) for run in rerun_records(gathered, platform, workload))
    phrases = [
        f"{count} reruns {sentence_of(problem)}: they do not count" for problem, count in problems.items() if problem
    ]
    return "; ".join(phrases)


def with_ab_answers(
    asked: Sequence[LineDecision], gathered: GatheredRecords, platform: str, answers: Mapping[tuple[str, str], Answers]
) -> dict[tuple[str, str], Answers]:
    """Add the A/B test's results, with a shared significance level."""
    changed = dict(answers)
    for workload in {one.line.workload for one in asked}:
        evidence = ab_evidence(gathered, platform, workload)
        wanting = [one.line for one in asked if one.line.workload == workload and one.needs == "ab"]
        for line in wanting:
            key = (workload, line.metric.name)
            if evidence is not None:
                changed[key] = ab_answers(changed.get(key, Answers()), evidence, line.metric, len(wanting))
    return changed


def is_ab(assignment: Assignment, platform: str, workload: str) -> bool:
    """Return whether this training is the given A/B test."""
    return (assignment.platform, assignment.workload, assignment.what) == (platform, workload, AB)


def ab_evidence(gathered: GatheredRecords, platform: str, workload: str) -> AbEvidence | None:
    """Return the runs of tonight's A/B test, or `None` without record."""
    return next(
        (one.record.evidence.ab for key, one in gathered.records.items() if is_ab(key, platform, workload)), None
    )


def software_states(
    lines: Sequence[MetricHistory], changes: Mapping[str, SoftwareChange]
) -> dict[tuple[str, str], Software]:
    """Map (workload, metric) to whether the software may differ (speed metrics only)."""
    states: dict[tuple[str, str], Software] = {}
    for line in lines:
        state = changes[line.workload].state
        measured = line.metric.name in SPEED_METRICS
        states[line.workload, line.metric.name] = "unavailable" if state == "can-differ" and not measured else state
    return states
