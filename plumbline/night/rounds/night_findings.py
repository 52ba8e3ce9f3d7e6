"""What the nights decide: which numbers are theirs before records are judged, and their findings afterwards. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from plumbline.judge.gates.gate import PastNights
from plumbline.judge.history.night import LineDecision
from plumbline.judge.history.segments import past_of
from plumbline.judge.statistics.equivalence import equivalence, locks_of
from plumbline.night.rounds.night_answers import SPEED_METRICS
from plumbline.night.rounds.nights import Nights, PlatformNight
from plumbline.night.rounds.software import SoftwareChange
from plumbline.report.decisions import finding_of, sentence
from plumbline.schema import limits
from plumbline.schema.fact import joined
from plumbline.schema.verdict import Cause, Finding, Note, PlatformResult, worst

Results = Mapping[str, Mapping[str, PlatformResult]]
"""By workload, then by platform."""


def past_nights(nights: Nights, accuracy_margin: float) -> dict[str, dict[str, PastNights]]:
    """Return, by workload and platform, which numbers the nights decide."""
    past: dict[str, dict[str, PastNights]] = {}
    for platform, night in nights.items():
        for workload in {one.line.workload for one in night.decisions}:
            mine = _of_workload(night, workload)
            owned = (one for one in mine if one.line.metric.name == "throughput")
            detail, is_equivalent = _equivalence(mine, accuracy_margin)
            past.setdefault(workload, {})[platform] = PastNights(
                own_throughput=any(one.reason not in ("learning", "missing") for one in owned),
                equal_accuracy=detail if is_equivalent else "",
            )
    return past


def _of_workload(night: PlatformNight, workload: str) -> list[LineDecision]:
    return [one for one in night.decisions if one.line.workload == workload]


def apply_nights(results: Results, nights: Nights, accuracy_margin: float) -> dict[str, dict[str, PlatformResult]]:
    """Add what the decision engine finds, to results that were judged with `past_nights`."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for platform, night in nights.items():
        for workload, platforms in changed.items():
            if platform not in platforms:
                continue
            if night.damage:
                finding = Finding(check="history.series", outcome="invalid", detail=night.damage)
                platforms[platform] = _with_findings(platforms[platform], [finding])
            elif night.decisions:
                mine = _of_workload(night, workload)
                change = night.software.get(workload, SoftwareChange("unavailable"))
                applied = _applied(platforms[platform], mine, change, night.signs.get(workload))
                detail, _ = _equivalence(mine, accuracy_margin)
                notes = (*applied.notes, Note(text=detail)) if detail else applied.notes
                platforms[platform] = applied.replace(notes=notes)
    return changed


def _applied(
    result: PlatformResult, decided: Sequence[LineDecision], change: SoftwareChange, signs: Cause | None
) -> PlatformResult:
    findings, causes, notes = [], [], []
    improved = []
    for decision in decided:
        reason = decision.reason
        is_single = decision.past.question is None
        if is_single and reason in ("machine", "unconfirmed") and decision.line.metric.name not in SPEED_METRICS:
            notes.append(Note(text=f"a single night: {sentence(decision)}"))
            continue
        if reason == "too-small":
            notes.append(Note(text=sentence(decision)))
            continue
        is_owned = decision.line.metric.name == "throughput" and reason == "quiet"
        if reason in ("quiet", "learning", "missing") and not is_owned:
            continue
        findings.append(finding_of(decision))
        if reason == "improved":
            improved.append(decision.line.metric.name)
        is_slow_machine = reason == "machine" and decision.verdict == "inconclusive" and signs is not None
        if decision.verdict == "drift" or is_slow_machine:
            causes.append(_cause(decision, change, signs))
    codes = {cause.code for cause in result.causes}
    causes = [cause for cause in causes if cause.code not in codes and not (codes and cause.code == "unattributed")]
    changed = _with_findings(result, findings)
    return changed.replace(
        causes=(*changed.causes, *{cause.code: cause for cause in causes}.values()),
        notes=(*changed.notes, *notes),
        improved=tuple(improved),
        called=tuple({one.line.workload for one in decided if one.decision.new and one.verdict == "drift"}),
    )


def _equivalence(decided: Sequence[LineDecision], margin: float) -> tuple[str, bool]:
    """Return what the nights' accuracies show by an equivalence test, and whether that is equivalence; "": nothing.

    Nights by earlier software say nothing about tonight's: with them, the first nights of a loss would pass. A loss is
    called by the decision engine.
    """
    made = next((one for one in decided if one.line.metric.name == "accuracy"), None)
    reference = made.decision.reference if made is not None else None
    if made is None or reference is None:
        return "", False
    past = past_of(made.line)
    values = [-value for value in past.values.tolist()]
    # Nights of one lock repeat one seed's end: with a new lock since, each lock is one value.
    since = max(made.line.upgrades, default=0)
    earlier = values[past.level : past.level + reference.count]
    newest = values[max(len(values) - limits.ENOUGH_NIGHTS, past.level + reference.count, since) :]
    groups, kind = (earlier, newest), "nights"
    if any(upgrade > past.level for upgrade in made.line.upgrades):
        groups, kind = (
            (locks_of(values, [past.level, *made.line.upgrades], since), [float(np.mean(values[since:]))]),
            "locks",
        )
    test = equivalence(*groups, margin)
    if test is None:
        return "", False
    is_equivalent = test.outcome == "equivalent"
    if is_equivalent and (made.verdict != "pass" or abs(-newest[-1] - reference.centre) > margin):
        return "", False  # the mean of many nights hides a loss that begins tonight
    detail = (
        f"accuracy of {len(groups[1])} {kind} against {len(groups[0])}: {test.outcome} within {margin:g} "
        f"(difference {test.difference:+.4f}, 90% interval {test.low:+.4f} to {test.high:+.4f}); "
        f"they resolve {test.resolvable:.4f}; resolving {margin:g} takes {test.runs_needed} {kind} a side"
    )
    return detail, is_equivalent


def _with_findings(result: PlatformResult, findings: Sequence[Finding]) -> PlatformResult:
    verdict = worst([result.verdict, *(finding.outcome for finding in findings)])
    return result.replace(verdict=verdict, findings=(*result.findings, *findings))


def _cause(one: LineDecision, change: SoftwareChange, signs: Cause | None) -> Cause:
    """Return the cause of nightly drift, from A/B or machine measurements."""
    decision, words = one.decision, sentence(one)
    tried: tuple[str, ...] = ()
    if decision.difference is not None:
        shown = "shows" if decision.reason == "software" else "does not show"
        p_value = f"p = {decision.difference.p_value:.2g}"
        tried = (f"an A/B of {decision.difference.num_runs} runs on one machine {shown} a difference: {p_value}",)
    is_known = decision.reason == "open-call" and one.past.calls[-1].is_software
    if decision.reason == "software" or is_known:
        return Cause(code="software", sure="confirmed", why=words, suspects=change.changes, tried=tried)
    if signs is not None and one.line.metric.name in SPEED_METRICS:
        return signs.replace(why=joined((signs.why, words)), tried=tried)
    if decision.is_cleared and one.line.metric.name in SPEED_METRICS:
        return Cause(code="slow-device", sure="likely", why=words, evidence=change.hosts, tried=tried)
    return Cause(code="unattributed", sure="unattributed", why=words, tried=tried)
