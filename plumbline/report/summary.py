"""A round as Markdown, for the summary of a CI job."""

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

__all__ = ["step_summary"]

_MARKS = re.compile(r"([\\`*_{}\[\]#!|~])")


def _safe(text: object, limit: int = 240) -> str:
    """Text that neither HTML nor Markdown takes for its own."""
    return (
        _MARKS.sub(r"\\\1", html.escape(clean(text, limit), quote=False))
        .replace("@", "@\u200b")
        .replace("://", ":\u200b//")
    )


def step_summary(verdict: RoundVerdict) -> str:
    """The Markdown document."""
    lines = [
        f"## {SYMBOLS[verdict.verdict]} Plumbline: {verdict.verdict}",
        "",
        f"Suite **{_safe(verdict.suite, 63)}**, round {_safe(verdict.round, 80)}"
        + (f", {seconds(verdict.timings['total'])}" if "total" in verdict.timings else ""),
        "",
        "| platform | verdict | accuracy | samples/s | first divergence | cause |",
        "|---|---|--:|--:|---|---|",
    ]
    for name, result in verdict.platforms.items():
        accuracy = NONE if result.accuracy is None else percent(result.accuracy, 2)
        rate = NONE if result.samples_per_second is None else number(result.samples_per_second)
        cells = [
            _safe(name, 63), f"{SYMBOLS[result.verdict]} {result.verdict}", accuracy, rate,
            _safe(place(result.first_divergence)), _safe(cause_line(result)),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for name, result in verdict.platforms.items():
        cause = top_cause(result)
        if cause is not None and result.verdict != "pass":
            lines += ["", f"**{_safe(name, 63)}**: {CAUSES[cause.code]} ({cause.sure}). {_safe(cause.why)}"]
    lines += ["", *(f"- {_safe(note)}" for note in verdict.notes)]
    if verdict.report:
        lines.append(f"Report: {_safe(verdict.report)}")
    return "\n".join(lines).rstrip() + "\n"
