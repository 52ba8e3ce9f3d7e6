"""A round's verdict and findings as Markdown, for the Prefect UI. Pure."""

from __future__ import annotations

from plumbline.schema.verdict import Divergence, PlatformResult, RoundVerdict

__all__ = ["findings_table", "verdict_table"]

_MOST_FINDINGS = 200


def verdict_table(verdict: RoundVerdict) -> str:
    """One line for each platform."""
    lines = [
        f"**{verdict.verdict}** · suite {verdict.suite} · round {verdict.round}",
        "",
        "| platform | verdict | accuracy | samples/s | first divergence | cause |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in verdict.platforms.items():
        cells = [name, one.verdict, _number(one.accuracy, ".4f"), _number(one.samples_per_second, ".1f")]
        cells += [_where(one.first_divergence), _cause(one)]
        lines.append(_row(cells))
    lines += ["", *(f"- {note}" for note in verdict.notes)]
    if verdict.report:
        lines += ["", f"Report: {verdict.report}"]
    return "\n".join(lines)


def findings_table(verdict: RoundVerdict) -> str:
    """Every finding with its numbers at full precision, those that did not pass first."""
    every = [(name, finding) for name, one in verdict.platforms.items() for finding in one.findings]
    every.sort(key=lambda pair: pair[1].outcome == "pass")
    lines = [
        "| platform | check | outcome | observed | limit | unit | against | detail |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in every[:_MOST_FINDINGS]:
        numbers = ["" if value is None else str(value) for value in (one.observed, one.limit)]
        lines.append(_row([name, one.check, one.outcome, *numbers, one.unit, one.against, one.detail]))
    if len(every) > _MOST_FINDINGS:
        lines += ["", f"{len(every) - _MOST_FINDINGS} more stand in the report."]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    """A line of a table; what records say is data, so it may not end a cell or start a tag."""
    clean = (cell.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(clean)} |"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _where(divergence: Divergence | None) -> str:
    if divergence is None:
        return ""
    step = "" if divergence.step is None else f" step {divergence.step}"
    return f"{divergence.stage}{step} {divergence.at}".strip()


def _cause(result: PlatformResult) -> str:
    if result.unavailable:
        return f"unavailable: {result.unavailable}"
    return ", ".join(f"{cause.code} ({cause.sure})" for cause in result.causes)
