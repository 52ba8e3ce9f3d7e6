"""The sum of a round: a verdict for each platform, one for the round, and the words for both. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.rounds.harvest import Absence
from plumbline.rounds.plan import Round
from plumbline.schema.verdict import Cause, Finding, Outcome, PlatformResult, RoundVerdict, worst

__all__ = ["absent_result", "headline", "join", "sum_up"]


def absent_result(absence: Absence) -> PlatformResult:
    """A platform without a record that could be judged: invalid if there is a broken one, else inconclusive."""
    outcome: Outcome = "invalid" if absence.broken else "inconclusive"
    finding = Finding(check="record.complete", outcome=outcome, detail=absence.why)
    return PlatformResult(
        verdict=outcome, findings=(finding,), unavailable="" if absence.broken else absence.why or "no record"
    )


def join(results: Mapping[str, PlatformResult]) -> PlatformResult:
    """A platform's results over several workloads as one; with more than one, checks carry the workload's name."""
    if len(results) == 1:
        return next(iter(results.values()))
    findings: list[Finding] = []
    causes: list[Cause] = []
    for workload, result in results.items():
        findings += [one.replace(check=f"{workload}.{one.check}") for one in result.findings]
        causes += [one.replace(why=f"{workload}: {one.why}") for one in result.causes]
    every = list(results.values())
    return PlatformResult(
        verdict=worst([result.verdict for result in every]),
        findings=tuple(findings),
        first_divergence=next((result.first_divergence for result in every if result.first_divergence), None),
        causes=tuple(causes),
        suspects=tuple(dict.fromkeys(line for result in every for line in result.suspects)),
        notes=tuple(f"{name}: {line}" for name, result in results.items() for line in result.notes),
        records=tuple(record for result in every for record in result.records),
        accuracy=next((result.accuracy for result in every if result.accuracy is not None), None),
        samples_per_second=next((one.samples_per_second for one in every if one.samples_per_second is not None), None),
        unavailable="; ".join(f"{name}: {one.unavailable}" for name, one in results.items() if one.unavailable),
        timings={f"{name}.{key}": value for name, one in results.items() for key, value in one.timings.items()},
    )


def sum_up(this: Round, platforms: Mapping[str, PlatformResult], **more: object) -> RoundVerdict:
    """The round's verdict: the worst of the platforms that have their records, if they are a quorum.

    Of several workloads one may drift where another left no record: what was seen to be wrong is told all the same.
    """
    heard = {
        name: result
        for name, result in platforms.items()
        if not result.unavailable or result.verdict in ("drift", "invalid")
    }
    verdict = worst([result.verdict for result in heard.values()])
    notes = [f"{name} is unavailable: {result.unavailable}" for name, result in platforms.items() if result.unavailable]
    quorum = min(this.suite.dispatch.quorum, len(platforms))
    if len(heard) < quorum:
        verdict = worst([verdict, "inconclusive"])
        notes.append(f"{len(heard)} of {len(platforms)} platforms left a record; the suite's quorum is {quorum}")
    content = {"round": this.id, "suite": this.suite.name, "verdict": verdict, "platforms": dict(platforms)}
    return RoundVerdict.model_validate({**content, "notes": tuple(notes), **more})


def headline(verdict: RoundVerdict) -> str:
    """One line: the outcome, and of the worst platform the check, its numbers and the cause."""
    if verdict.verdict == "pass":
        passed = [name for name, result in verdict.platforms.items() if result.verdict == "pass"]
        return "; ".join([f"pass: {', '.join(passed)}", *verdict.notes])
    lines = [
        f"{name}: {_why(result)}"
        for name, result in verdict.platforms.items()
        if result.verdict == verdict.verdict or (verdict.verdict == "inconclusive" and result.unavailable)
    ]
    return f"{verdict.verdict}: " + "; ".join(lines or list(verdict.notes) or ["nothing was checked"])


def _why(result: PlatformResult) -> str:
    parts = [f"{cause.code} ({cause.sure}), {cause.why}" for cause in result.causes[:1]]
    finding = next((one for one in result.findings if one.outcome == result.verdict), None)
    if finding is not None:
        numbers = f" {finding.observed} against a limit of {finding.limit}" if finding.limit is not None else ""
        unit = f" {finding.unit}" if finding.unit and numbers else ""
        detail = f", {finding.detail}" if finding.detail else ""
        parts.append(f"{finding.check}{numbers}{unit}{detail}")
    return "; ".join(parts) or result.unavailable or "no finding"
