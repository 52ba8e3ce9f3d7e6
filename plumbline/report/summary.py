"""A round as Markdown, for the summary of a CI job and for the Prefect UI. What records say may end no cell."""

from __future__ import annotations

import html
import re

from plumbline.report.words import (
    CAUSES,
    NONE,
    SYMBOLS,
    cause_line,
    clean,
    number,
    percent,
    place,
    seconds,
    top_cause,
)
from plumbline.schema.verdict import RoundVerdict

__all__ = ["findings_table", "safe", "step_summary"]

_MOST_FINDINGS = 200
_MARKS = re.compile(r"([\\`*_{}\[\]#!|~])")


def safe(text: object, limit: int = 240) -> str:
    """Text that neither HTML nor Markdown takes for its own."""
    return (
        _MARKS.sub(r"\\\1", html.escape(clean(text, limit), quote=False))
        .replace("@", "@\u200b")
        .replace("://", ":\u200b//")
    )


def _code(text: str) -> str:
    """An address that can be copied as it stands, and that nothing follows by itself."""
    return f"`{clean(text, 300).replace('`', '')}`"


def step_summary(verdict: RoundVerdict) -> str:
    """The Markdown document."""
    lines = [
        f"## {SYMBOLS[verdict.verdict]} Plumbline: {verdict.verdict}",
        "",
        f"Suite **{safe(verdict.suite, 63)}**, round {safe(verdict.round, 80)}"
        + (f", {seconds(verdict.timings['total'])}" if "total" in verdict.timings else ""),
        "",
        "| platform | verdict | cause | accuracy | samples/s | first divergence |",
        "|---|---|---|--:|--:|---|",
    ]
    for name, result in verdict.platforms.items():
        accuracy = NONE if result.accuracy is None else percent(result.accuracy, 2)
        rate = NONE if result.samples_per_second is None else number(result.samples_per_second)
        cells = [
            safe(name, 63), f"{SYMBOLS[result.verdict]} {result.verdict}", safe(cause_line(result)), accuracy, rate,
            safe(place(result.first_divergence)),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for name, result in verdict.platforms.items():
        cause = top_cause(result)
        if cause is not None and result.verdict != "pass":
            lines += ["", f"**{safe(name, 63)}**: {CAUSES[cause.code]} ({cause.sure}): {safe(cause.why)}"]
    lines += ["", *(f"- {safe(note)}" for note in verdict.notes)]
    places = (("Report", verdict.report), ("Flow run", verdict.flow_run))
    lines += [f"- {what}: {_code(where)}" for what, where in places if where]
    return "\n".join(lines).rstrip() + "\n"


def findings_table(verdict: RoundVerdict) -> str:
    """Every finding with its numbers at full precision, those that did not pass first."""
    every = [(name, finding) for name, one in verdict.platforms.items() for finding in one.findings]
    every.sort(key=lambda pair: pair[1].outcome == "pass")
    lines = [
        "| platform | check | outcome | observed | limit | detail | against |",
        "|---|---|---|--:|--:|---|---|",
    ]
    for name, one in every[:_MOST_FINDINGS]:
        unit = f" {one.unit}" if one.unit else ""
        numbers = ["" if value is None else f"{value}{unit}" for value in (one.observed, one.limit)]
        outcome = f"{SYMBOLS[one.outcome]} {one.outcome}"
        cells = [safe(name, 63), safe(one.check), outcome, *map(safe, numbers)]
        lines.append(f"| {' | '.join([*cells, safe(one.detail), safe(one.against)])} |")
    if len(every) > _MOST_FINDINGS:
        lines += ["", f"{len(every) - _MOST_FINDINGS} more stand in the report."]
    return "\n".join(lines) + "\n"
