"""Markdown of a round or imported series, for CI and Prefect."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from urllib.parse import quote

from plumbline.report.charts import Chart
from plumbline.report.html import template
from plumbline.report.sentences import (
    NONE,
    SYMBOLS,
    cause_line,
    clean,
    number,
    percent,
    place,
    seconds,
    source_of,
)
from plumbline.report.summary import LineSummary
from plumbline.report.view import ReportView
from plumbline.schema.escape import one_line
from plumbline.schema.verdict import Outcome, RoundVerdict

_MOST_FINDINGS = 200
_IN_ADDRESS = "%/:?#@!$&'+,;=~-._"
"""Characters that end no link and begin no tag."""
_MARKS = re.compile(r"([\\`*_{}\[\]#!|~])")

_MOST_BYTES = 600_000
"""Maximum size of an artifact in the Prefect UI: the server's database keeps one per night."""


def safe(text: object, limit: int = 240) -> str:
    """Escape text for HTML and Markdown."""
    return (
        _MARKS.sub(r"\\\1", html.escape(clean(text, limit), quote=False))
        .replace("@", "@\u200b")
        .replace("://", ":\u200b//")
    )


def _link(label: str, address: str) -> str:
    """Format a web address as a link, anything else as code."""
    if address.startswith(("http://", "https://")):
        # A presigned address is a thousand characters long, and dead without its last one.
        return f"[{label}]({quote(address, safe=_IN_ADDRESS)})"
    return f"{label}: `{one_line(address).replace('`', '')}`"


def step_summary(verdict: RoundVerdict) -> str:
    """Return a round's Markdown summary."""
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
        accuracy = percent(result.accuracy, 2)
        rate = NONE if result.samples_per_second is None else number(result.samples_per_second)
        cells = [
            safe(name, 63), f"{SYMBOLS[result.verdict]} {result.verdict}", safe(cause_line(result)), accuracy, rate,
            safe(place(result.first_divergence)),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for name, result in verdict.platforms.items():
        for cause in result.causes if result.verdict != "pass" else ():
            lines += ["", f"**{safe(name, 63)}**: {cause.code} ({cause.sure}): {safe(cause.why)}"]
    lines += ["", *(f"- {safe(note)}" for note in verdict.notes)]
    places = (("Report", verdict.report), ("Flow run", verdict.flow_run))
    lines += [f"- {_link(label, where)}" for label, where in places if where]
    return "\n".join(lines).rstrip() + "\n"


def series_summary(source: str, verdict: Outcome, words: str, lines: Sequence[LineSummary]) -> str:
    """Return imported series' Markdown summary: a table of regressions, the rest counted."""
    lost = sorted((line for line in lines if line.verdict != "pass"), key=lambda line: line.verdict != "drift")
    text = [f"## {SYMBOLS[verdict]} Plumbline history: {verdict}", "", f"{safe(source)}: {safe(words)}."]
    if lost:
        text += ["", "| series | verdict | why |", "|---|---|---|"]
    for line in lost[:_MOST_FINDINGS]:
        name = safe(" ".join(filter(None, (line.platform, line.workload, line.metric))))
        text.append(f"| {name} | {SYMBOLS[line.verdict]} {line.verdict} | {safe(line.sentence, 600)} |")
    left = len(lost) - _MOST_FINDINGS
    text += ["", f"{left} more are in the page of --html."] if left > 0 else []
    return "\n".join([*text, "", f"{len(lines) - len(lost)} of {len(lines)} series passed."]) + "\n"


def findings_table(verdict: RoundVerdict) -> str:
    """Return a table of all findings, failed ones first."""
    every = [(name, finding) for name, result in verdict.platforms.items() for finding in result.findings]
    every.sort(key=lambda pair: pair[1].outcome == "pass")
    lines = [
        "| platform | check | outcome | observed | limit | detail | against |",
        "|---|---|---|--:|--:|---|---|",
    ]
    for name, result in every[:_MOST_FINDINGS]:
        unit = f" {result.unit}" if result.unit else ""
        numbers = ["" if value is None else f"{value}{unit}" for value in (result.observed, result.limit)]
        outcome = f"{SYMBOLS[result.outcome]} {result.outcome}"
        cells = [safe(name, 63), safe(result.check), outcome, *map(safe, numbers)]
        lines.append(f"| {' | '.join([*cells, safe(result.detail), safe(source_of(result.against))])} |")
    if len(every) > _MOST_FINDINGS:
        lines += ["", f"{len(every) - _MOST_FINDINGS} more are in the report."]
    return "\n".join(lines) + "\n"


def figures_page(view: ReportView) -> str:
    """Return a Markdown page of all charts, up to a maximum size."""
    lines, size, left_out = [], 0, 0
    for heading, chart in _charts(view):
        picture = base64.b64encode(template("figure.svg.j2").render(chart=chart).encode()).decode()
        size += len(picture)
        if size > _MOST_BYTES:
            left_out += 1
            continue
        uri = f"data:image/svg+xml;base64,{picture}"
        title = safe(f"{heading}{chart.title}")
        lines += [f"### {title}", "", safe(chart.note), "", f"![{title}]({uri})", ""]
    if left_out:
        lines += [f"{left_out} more charts are in the report.", ""]
    return "\n".join(lines) or "No platform left a record in this round, so there is no chart.\n"


def _charts(view: ReportView) -> list[tuple[str, Chart]]:
    several = len(view.workloads) > 1
    charts = [("", view.history)] if view.history else []
    return [
        *charts,
        *((f"{workload.name}: " if several else "", chart) for workload in view.workloads for chart in workload.charts),
    ]
