"""Report texts: headline, causes and platform cards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plumbline.report.sentences import about, by_rounding, clean, counted, deciding, place, some_of, top_cause
from plumbline.schema.fact import Statement
from plumbline.schema.verdict import Cause, Finding, PlatformResult, RoundVerdict


@dataclass(frozen=True, slots=True)
class Headline:
    """Verdict in one sentence, with supporting text."""

    verdict: RoundVerdict
    sentence: str
    support: str
    night: str
    causes: tuple[CauseLine, ...] = ()


@dataclass(frozen=True, slots=True)
class CauseLine:
    """One cause in the headline, with affected platforms and first divergence."""

    platforms: str
    cause: Cause
    where: str
    card: int
    """Number of the first card with this cause."""


@dataclass(frozen=True, slots=True)
class PlatformCard:
    """Report card of one platform that did not pass."""

    name: str
    result: PlatformResult
    cause: Cause | None
    """The first of the surest causes."""
    title: str
    why: str
    since: str
    hint: str
    findings: tuple[Finding, ...]
    num_left_out: int
    """Number of further findings."""
    evidence: tuple[str, ...]
    suspects: tuple[str, ...]
    tried: tuple[str, ...]


_MAX_CAUSES = 3
_MAX_NUMBERS = 12
_MAX_LINES = 12


def headline(verdict: RoundVerdict, order: Sequence[str], night: str, *, exact: bool) -> Headline:
    """Return the verdict's headline and supporting text."""
    by_outcome = {
        outcome: [name for name in order if verdict.platforms[name].verdict == outcome]
        for outcome in ("invalid", "drift", "inconclusive", "pass")
    }
    return Headline(
        verdict=verdict,
        sentence=_sentence(verdict, {outcome: names for outcome, names in by_outcome.items() if names}),
        support=_support(verdict, by_outcome, exact=exact),
        night=night,
        causes=_causes(verdict, order),
    )


def _causes(verdict: RoundVerdict, order: Sequence[str]) -> tuple[CauseLine, ...]:
    """Return drifted platforms' causes, most frequent first."""
    groups: dict[tuple[str, str, str], list[tuple[str, int, Cause]]] = {}
    failed = [name for name in order if verdict.platforms[name].verdict != "pass"]
    for place_in_page, name in enumerate(failed, start=1):
        result = verdict.platforms[name]
        cause = top_cause(result)
        if cause is not None and result.verdict == "drift":
            key = (cause.code, cause.sure, place(result.first_divergence))
            groups.setdefault(key, []).append((name, place_in_page, cause))
    lines = []
    for (_, _, where), members in sorted(groups.items(), key=lambda item: -len(item[1]))[:_MAX_CAUSES]:
        _, card, cause = members[0]
        lines.append(CauseLine(some_of([group for group, *_ in members]), cause, where, card))
    return tuple(lines)


def _sentence(verdict: RoundVerdict, by_outcome: dict[str, list[str]]) -> str:
    chosen = by_outcome.get(verdict.verdict, [])
    names = [clean(name, 63) for name in chosen]
    if not names:
        return f"The round is {verdict.verdict}: too few platforms left a record to be judged."
    if verdict.verdict == "pass":
        where = {1: f"on {names[0]} is unchanged", 2: "is the same on both platforms"}
        return f"Training {where.get(len(names), f'is the same on all {len(names)} platforms')}."
    if len(names) > 1:
        texts = {"drift": "have drifted", "invalid": "cannot be judged", "inconclusive": "have too little evidence"}
        return f"{some_of(names)} {texts[verdict.verdict]}."
    result = verdict.platforms[chosen[0]]
    cause = top_cause(result)
    texts = {
        "drift": f"{names[0]} has drifted: {about('because', cause.code) if cause else 'the numbers differ'}.",
        "invalid": f"{names[0]} cannot be judged: {_reason(result)}.",
        "inconclusive": f"{names[0]} has too little evidence: {_reason(result)}.",
    }
    return texts[verdict.verdict]


def _reason(result: PlatformResult) -> str:
    if result.unavailable and result.verdict == "inconclusive":
        return clean(result.unavailable, 160).rstrip(".")
    finding = deciding(result)
    return (
        clean(finding.detail or finding.metric or finding.check, 160).rstrip(".")
        if finding
        else "no finding gives a reason"
    )


def _support(verdict: RoundVerdict, by_outcome: dict[str, list[str]], *, exact: bool) -> str:
    """Return the supporting text on the other platforms' results."""
    texts = {"pass": "passed", "drift": "drifted", "inconclusive": "without enough evidence", "invalid": "not judged"}
    parts = [f"{len(names)} {texts[outcome]} ({some_of(names)})" for outcome, names in by_outcome.items() if names]
    rounding = [name for name, result in verdict.platforms.items() if by_rounding(result)]
    if verdict.verdict == "pass" and rounding:
        parts.append(f"{some_of(sorted(rounding))} differ from the reference by rounding alone")
    if verdict.verdict == "pass" and exact:
        parts.append("losses and weights are equal to the last bit at every step of the probe")
    if verdict.verdict == "pass":
        parts += _proven([finding for result in verdict.platforms.values() for finding in result.findings])
    return "; ".join(parts)


def _proven(findings: Sequence[Finding]) -> list[str]:
    """Describe how well production settings and learning curves were verified."""
    passed = [finding for finding in findings if finding.outcome == "pass"]
    checks = [finding for finding in passed if finding.check == "production.equality"]
    windows = [finding.observed for finding in passed if finding.check == "learn.portable"]
    places = [int(observed) for observed in windows if isinstance(observed, float)]
    parts = []
    if checks:
        parts.append(clean(max(checks, key=_share_of_limit).detail, 160))
    elif any(finding.check.startswith("speed.") for finding in findings):
        parts.append("production settings were timed, and not judged")
    if places:
        parts.append(f"learning curves: formulas identical at {counted(min(places), 'checkpoints')}")
    return parts


def _share_of_limit(finding: Finding) -> float:
    known = isinstance(finding.observed, float) and isinstance(finding.limit, float) and finding.limit
    return finding.observed / finding.limit if known else math.inf  # type: ignore[operator]


def card_of(name: str, result: PlatformResult, since_when: str) -> PlatformCard:
    """Build the report card of a platform that did not pass."""
    cause = top_cause(result)
    bad = [finding for finding in result.findings if finding.outcome != "pass"]
    return PlatformCard(
        name=clean(name, 63),
        result=result,
        cause=cause,
        title=_title(result),
        why=clean(cause.why) if cause else _reason(result),
        since=since_when,
        hint=_hint(result),
        findings=tuple(bad[:_MAX_NUMBERS]),
        num_left_out=max(0, len(bad) - _MAX_NUMBERS),
        evidence=_lines(cause.evidence if cause else ()),
        suspects=_lines((*(cause.suspects if cause else ()), *(() if cause and cause.suspects else result.suspects))),
        tried=_lines(cause.tried if cause else ()),
    )


def _title(result: PlatformResult) -> str:
    cause = top_cause(result)
    if result.verdict == "drift":
        text = about("because", cause.code) if cause else "the numbers differ"
    elif result.verdict == "invalid":
        text = "its evidence cannot be judged"
    else:
        text = "there is too little evidence"
    return text[0].upper() + text[1:]


def _hint(result: PlatformResult) -> str:
    cause = top_cause(result)
    if cause is not None:
        return about("hint", cause.code)
    if result.verdict == "inconclusive":
        return "Run `plumbline doctor SUITE` to see why the platform is unavailable, then run the round again."
    return "Look at the finding below and at the platform's log, then run the round again."


def _lines(lines: Sequence[Statement]) -> tuple[str, ...]:
    kept = tuple(clean(line, 300) for line in lines[:_MAX_LINES])
    return (*kept, f"and {len(lines) - _MAX_LINES} more") if len(lines) > _MAX_LINES else kept
