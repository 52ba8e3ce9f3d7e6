"""What stands on the screen when a round is over: the verdicts, where the time went, where to read more."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from plumbline.rounds import headline
from plumbline.schema.verdict import PlatformResult, RoundVerdict

__all__ = ["print_round"]

_COLOURS = {"pass": "green", "drift": "red", "invalid": "magenta", "inconclusive": "yellow"}


def print_round(verdict: RoundVerdict, timings: Mapping[str, float]) -> None:
    """Print the round for a person."""
    console = Console(highlight=False)
    table = Table(title=f"{verdict.suite}, round {verdict.round}", title_justify="left")
    for column in ("platform", "verdict", "accuracy", "samples/s", "first divergence", "cause"):
        table.add_column(column, overflow="fold")
    for name, one in verdict.platforms.items():
        table.add_row(name, Text(one.verdict, style=_COLOURS[one.verdict]), *_cells(one))
    console.print(table)
    for note in dict.fromkeys(note for one in verdict.platforms.values() for note in one.notes):
        console.print(Text(f"note: {note}"))
    console.print(Text(headline(verdict), style=_COLOURS[verdict.verdict]), soft_wrap=True)
    spent = sorted(timings.items(), key=lambda pair: -pair[1])
    console.print(Text("time: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent)), soft_wrap=True)
    for label, value in (("report", verdict.report), ("run", verdict.flow_run)):
        if value:
            console.print(Text(f"{label}: {value}"), soft_wrap=True)


def _cells(one: PlatformResult) -> list[str]:
    divergence = one.first_divergence
    where = ""
    if divergence is not None:
        step = "" if divergence.step is None else f" step {divergence.step}"
        where = f"{divergence.stage}{step} {divergence.at}".strip()
    causes = ", ".join(f"{cause.code} ({cause.sure})" for cause in one.causes)
    return [
        "" if one.accuracy is None else f"{one.accuracy:.4f}",
        "" if one.samples_per_second is None else f"{one.samples_per_second:.1f}",
        where,
        causes or (f"unavailable: {one.unavailable}" if one.unavailable else ""),
    ]
