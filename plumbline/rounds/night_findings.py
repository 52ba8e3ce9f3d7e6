"""Findings and causes of a night, added to each platform's result. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from plumbline.history.equivalence import equivalence
from plumbline.history.night import LineDecision, finding_of, sentence
from plumbline.history.reference import ENOUGH, Reference
from plumbline.history.segments import past_of
from plumbline.judge.gates.throughput import CHECK
from plumbline.rounds.night_answers import SPEED_METRICS
from plumbline.rounds.nights import NightDecisions
from plumbline.rounds.software import MACHINE_CODES, SoftwareChange
from plumbline.schema.fact import joined
from plumbline.schema.verdict import Cause, Finding, PlatformResult, worst

__all__ = ["apply_nights", "with_equivalence"]

Results = Mapping[str, Mapping[str, PlatformResult]]
"""By workload, then by platform."""

_RULED_OUT = 0.05
"""Level at which each run of tonight has to rule a drop out: a true drop of the limit is withdrawn once in twenty."""

_ACCURACY_NIGHTS = 14
"""Number of newest nights whose accuracies are tested together."""


def apply_nights(
    results: Results, nights: NightDecisions, accuracy_margin: float = 0.02
) -> dict[str, dict[str, PlatformResult]]:
    """Add the decision engine's findings, which replace the gate on a single baseline."""
    changed = {workload: dict(platforms) for workload, platforms in results.items()}
    for platform, lot in nights.decisions.items():
        for workload, platforms in changed.items():
            if platform in platforms:
                mine = [one for one in lot if one.line.workload == workload]
                change = nights.software.get((platform, workload), SoftwareChange("unavailable"))
                reruns = nights.reruns.get((platform, workload), ())
                kept = _without_gate(platforms[platform], mine, reruns)
                applied = _applied(kept, mine, change, nights.signs.get((platform, workload)))
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
        is_single = decision.past.question is None
        if is_single and reason in ("machine", "unconfirmed") and decision.line.metric.name not in SPEED_METRICS:
            notes.append(f"a single night: {sentence(decision)}")
            continue
        if reason == "within-margin":
            notes.append(sentence(decision))
            continue
        if reason in ("quiet", "learning", "missing"):
            continue
        findings.append(finding_of(decision))
        if reason == "improved":
            improved.append(decision.line.metric.name)
        if decision.verdict == "drift":
            causes.append(_cause(decision, change, signs))
    judged = _with_ab_answer(result, decided, change, signs)
    codes = {cause.code for cause in judged.causes}
    causes = [cause for cause in causes if cause.code not in codes and not (codes and cause.code == "unattributed")]
    changed = _with_findings(judged, findings)
    return changed.replace(
        causes=(*changed.causes, *{cause.code: cause for cause in causes}.values()),
        notes=(*changed.notes, *notes),
        improved=tuple(improved),
    )


def with_equivalence(result: PlatformResult, decided: Sequence[LineDecision], margin: float) -> PlatformResult:
    """Add the equivalence of the last nights' accuracies, all by tonight's software.

    Nights by earlier software say nothing about tonight's: with them, the first nights of a loss would pass.
    """
    made = next((one for one in decided if one.line.metric.name == "accuracy"), None)
    reference = made.decision.reference if made is not None else None
    if made is None or reference is None:
        return result
    past = past_of(made.line)
    values = [-value for value in past.values[past.level :].tolist()]
    upgraded = max(made.line.upgrades, default=0) - past.level
    newest = values[max(len(values) - _ACCURACY_NIGHTS, reference.count, upgraded) :]
    test = equivalence(values[: reference.count], newest, margin)
    if test is None:
        return result
    detail = (
        f"accuracy of the last {len(newest)} nights: {test.outcome} within {margin:g} "
        f"(difference {test.difference:+.4f}, 90% interval {test.low:+.4f} to {test.high:+.4f}); "
        f"these nights resolve {test.resolvable:.4f}; resolving {margin:g} takes {test.runs_needed} nights a side"
    )
    if test.outcome == "different":
        finding = Finding(
            check="history.accuracy.equivalence", outcome="drift", metric="difference of the mean accuracy",
            observed=test.difference, limit=margin, unit="absolute", against=f"{reference.count} nights",
            detail=detail,
        )  # fmt: skip
        return _with_findings(result, [finding])
    if test.outcome == "equivalent" and (made.verdict != "pass" or abs(-newest[-1] - reference.centre) > margin):
        return result  # the mean of many nights hides a loss that begins tonight
    if test.outcome == "equivalent":
        # Many nights are stronger evidence than one pair of runs that is not bitwise equal.
        findings = tuple(
            finding.replace(outcome="pass", detail=joined((finding.detail, detail)))
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


def _without_gate(result: PlatformResult, decided: Sequence[LineDecision], reruns: Sequence[float]) -> PlatformResult:
    """Withdraw a throughput finding that the reference over many nights contradicts."""
    throughput = next((decision for decision in decided if decision.line.metric.name == "throughput"), None)
    reference = throughput.decision.reference if throughput is not None else None
    if throughput is None or reference is None or throughput.verdict != "pass":
        return result
    tonight = throughput.line.metric.scores(throughput.line.values[-1:]).tolist()
    gate = [finding for finding in result.findings if _is_contradicted(finding, reference, [*tonight, *reruns])]
    if not gate:
        return result
    findings = tuple(_withdrawn(finding, reference) if finding in gate else finding for finding in result.findings)
    verdict = worst([finding.outcome for finding in findings])
    slow = {"loader", "transfer", "throttling", "slow-device", "contention", "software"}
    causes = tuple(cause for cause in result.causes if cause.code not in slow and verdict == "drift")
    return result.replace(verdict=verdict, findings=findings, causes=causes)


def _is_contradicted(finding: Finding, reference: Reference, runs: Sequence[float]) -> bool:
    """Return whether every run of tonight rules out a loss of the gate's limit.

    That no detector asks is no evidence: a short or noisy reference asks about nothing. A drop that was measured takes
    a reference that knows its own noise; without one (a different machine class) the level of the test suffices.
    """
    if finding.check != CHECK or finding.outcome not in ("drift", "inconclusive"):
        return False
    if finding.observed is not None and reference.count < ENOUGH:
        return False
    loss = -math.log1p(-float(finding.limit or 0.0))
    return all(reference.rules_out(score, loss, _RULED_OUT) for score in runs)


def _withdrawn(finding: Finding, reference: Reference) -> Finding:
    text = f"withdrawn: the reference of {reference.count} nights rules out a loss of {float(finding.limit or 0.0):.2%}"
    return finding.replace(outcome="pass", detail=joined((finding.detail, text)))


def _with_ab_answer(
    result: PlatformResult, decided: Sequence[LineDecision], change: SoftwareChange, signs: Cause | None
) -> PlatformResult:
    """Correct the causes from signs: an A/B on the machine outweighs them."""
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
    """Return the cause of a drift over the nights: software by an A/B, else by the machine's signs."""
    decision, words = one.decision, sentence(one)
    tried: tuple[str, ...] = ()
    if decision.difference is not None:
        shown = "shows" if decision.reason == "software" else "does not show"
        p_value = f"p = {decision.difference.p_value:.2g}"
        tried = (f"an A/B of {decision.difference.num_runs} runs on one machine {shown} a difference: {p_value}",)
    if decision.reason == "software":
        return Cause(code="software", sure="confirmed", why=words, suspects=change.changes, tried=tried)
    if signs is not None and one.line.metric.name in SPEED_METRICS:
        return signs.replace(why=joined((signs.why, words)), tried=tried)
    return Cause(code="unattributed", sure="unattributed", why=words, tried=tried)
