"""Verdict of a round and its platforms, with headlines and events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plumbline.night.rounds.gathered import Absence
from plumbline.night.rounds.plan import Round
from plumbline.report.sentences import deciding, number, sentence_of
from plumbline.schema.escape import one_line
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Cause, Finding, Outcome, PlatformResult, RoundVerdict, worst

UNAVAILABLE = "unavailable"


def absent_result(absence: Absence) -> PlatformResult:
    """Return the result for a missing record: invalid if broken, else inconclusive."""
    outcome: Outcome = "invalid" if absence.broken else "inconclusive"
    finding = Finding(check=absence.check, outcome=outcome, detail=absence.why)
    return PlatformResult(
        verdict=outcome, findings=(finding,), unavailable="" if absence.broken else absence.why or "no record",
        is_misconfigured=absence.is_misconfigured,
    )  # fmt: skip


def join(results: Mapping[str, PlatformResult]) -> PlatformResult:
    """Merge a platform's results over its workloads."""
    named = {workload: _named(workload, result) for workload, result in results.items()}
    verdicts = {workload: result.verdict for workload, result in results.items()}
    absent = {workload: result.unavailable for workload, result in results.items() if result.unavailable}
    if len(results) == 1:
        return next(iter(named.values())).replace(workloads=verdicts, absent=absent)
    findings: list[Finding] = []
    causes: list[Cause] = []
    for workload, result in named.items():
        findings += [finding.replace(check=f"{workload}.{finding.check}") for finding in result.findings]
        causes += [
            cause.replace(why=fact("round.of-workload", workload=workload, why=cause.why)) for cause in result.causes
        ]
    every = list(results.values())
    trained = next((result for result in every if result.accuracy is not None), None)
    return PlatformResult(
        verdict=worst([result.verdict for result in every]),
        findings=tuple(findings),
        first_divergence=next((result.first_divergence for result in every if result.first_divergence), None),
        causes=tuple(causes),
        suspects=tuple(dict.fromkeys(line for result in every for line in result.suspects)),
        notes=tuple(note.replace(workload=name) for name, result in results.items() for note in result.notes),
        records=tuple(record for result in every for record in result.records),
        accuracy=trained.accuracy if trained else None,
        chance=trained.chance if trained else None,
        best_accuracy=trained.best_accuracy if trained else None,
        samples_per_second=next(
            (result.samples_per_second for result in every if result.samples_per_second is not None), None
        ),
        unavailable="; ".join(f"{name}: {why}" for name, why in absent.items()),
        absent=absent,
        is_misconfigured=bool(absent) and all(one.is_misconfigured for one in every if one.verdict == "inconclusive"),
        workloads=verdicts,
        improved=tuple(dict.fromkeys(metric for result in every for metric in result.improved)),
        called=tuple(name for result in every for name in result.called),
        timings={f"{name}.{key}": value for name, result in results.items() for key, value in result.timings.items()},
    )


def _named(workload: str, result: PlatformResult) -> PlatformResult:
    return result.replace(
        findings=tuple(finding.replace(workload=workload) for finding in result.findings),
        causes=tuple(cause.replace(workload=workload) for cause in result.causes),
    )


def sum_up(round_: Round, platforms: Mapping[str, PlatformResult], **more: object) -> RoundVerdict:
    """Return the round's verdict: the worst of its platforms.

    A platform without a record makes the round inconclusive, unless the platform is optional. If one workload drifts
    and a different one left no record, the drift counts.
    """
    platforms = {
        name: result.replace(optional=True) if round_.suite.platforms[name].optional else result
        for name, result in platforms.items()
    }
    heard = {
        name: result
        for name, result in platforms.items()
        if not result.unavailable or result.verdict in ("drift", "invalid")
    }
    counted = {name: result for name, result in platforms.items() if name in heard or not result.optional}
    verdict = worst([result.verdict for result in counted.values()])
    notes = [f"{name} is unavailable: {result.unavailable}" for name, result in platforms.items() if result.unavailable]
    quorum = min(round_.suite.dispatch.quorum, len(platforms))
    quorum_failed = len(heard) < quorum
    if quorum_failed:
        verdict = worst([verdict, "inconclusive"])
        notes.append(f"{len(heard)} of {len(platforms)} platforms left a record; the suite's quorum is {quorum}")
    content = {"round": round_.id, "suite": round_.suite.name, "verdict": verdict, "platforms": platforms}
    return RoundVerdict.model_validate({**content, "quorum_failed": quorum_failed, "notes": tuple(notes), **more})


def headline(verdict: RoundVerdict) -> str:
    """Return a one-line summary: outcome, worst platform, check, numbers and cause."""
    if verdict.verdict == "pass":
        passed = [name for name, result in verdict.platforms.items() if result.verdict == "pass"]
        return one_line("; ".join([f"pass: {', '.join(passed)}", *verdict.notes]))
    lines = [
        f"{name}: {_why(result)}"
        for name, result in verdict.platforms.items()
        if result.verdict == verdict.verdict or (verdict.verdict == "inconclusive" and result.unavailable)
    ]
    return one_line(f"{verdict.verdict}: " + "; ".join(lines or list(verdict.notes) or ["no check ran"]))


def _why(result: PlatformResult) -> str:
    parts = [f"{cause.code} ({cause.sure}), {sentence_of(cause.why)}" for cause in result.causes[:1]]
    finding = deciding(result)
    if finding is not None:
        numbers = ""
        if finding.limit is not None:
            numbers = f" {number(finding.observed)} against a limit of {number(finding.limit)}"
        unit = f" {finding.unit}" if finding.unit and numbers else ""
        detail = f", {sentence_of(finding.detail)}" if finding.detail else ""
        parts.append(f"{finding.check}{numbers}{unit}{detail}")
    return "; ".join(parts) or result.unavailable or "no finding"


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """Prefect event `plumbline.round.VERDICT` or `plumbline.platform.VERDICT`."""

    name: str
    resource: Mapping[str, str]
    """Labels of the event's resource; `prefect.resource.id` is its identity."""
    payload: Mapping[str, Any] = field(default_factory=dict)


def round_events(verdict: RoundVerdict) -> tuple[RoundEvent, ...]:
    """Return an event per platform, then the round's event.

    A platform without a record emits `plumbline.platform.unavailable` instead of its verdict.
    """
    platforms = [_platform_event(verdict, name, result) for name, result in verdict.platforms.items()]
    resource = {"prefect.resource.id": f"plumbline.suite.{verdict.suite}", "plumbline.suite": verdict.suite}
    payload = {
        "round": verdict.round,
        "verdict": verdict.verdict,
        "platforms": {name: result.verdict for name, result in verdict.platforms.items()},
        "report": verdict.report,
    }
    return (*platforms, RoundEvent(f"plumbline.round.{verdict.verdict}", resource, payload))


def _platform_event(verdict: RoundVerdict, name: str, result: PlatformResult) -> RoundEvent:
    gone = bool(result.unavailable) and result.verdict == "inconclusive"
    resource = {
        "prefect.resource.id": f"plumbline.platform.{verdict.suite}.{name}",
        "plumbline.suite": verdict.suite,
        "plumbline.platform": name,
    }
    payload = {
        "round": verdict.round,
        "verdict": result.verdict,
        "workloads": dict(result.workloads),
        "causes": [{"code": cause.code, "sure": cause.sure, "workload": cause.workload} for cause in result.causes],
        "unavailable": result.unavailable,
    }
    return RoundEvent(f"plumbline.platform.{UNAVAILABLE if gone else result.verdict}", resource, payload)
