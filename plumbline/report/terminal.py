"""Verdict as a text table, 100 columns wide."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from plumbline.report.sentences import (
    NONE,
    SYMBOLS,
    amount,
    cause_line,
    clean,
    deciding,
    listed,
    note_line,
    number,
    pair_names,
    percent,
    place,
    scale_of,
    seconds,
    sentence_of,
    source_of,
)
from plumbline.schema.escape import inert, one_line
from plumbline.schema.fact import Statement
from plumbline.schema.verdict import Finding, Judgement, Outcome, PlatformResult, RoundVerdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from plumbline.records import LoadedRecord

_WIDTH = 100
_COLOURS: dict[Outcome, str] = {"pass": "green", "drift": "red", "inconclusive": "yellow", "invalid": "magenta"}
_TOP_PHASES = 7
_GATES = ("learn.", "speed.", "history.")
"""Checks that each measure a loss of their own; those of the probe follow from the first."""


def verdict_table(
    verdict: RoundVerdict, *, colour: bool = False, suite_file: str = "", program: str = "plumbline"
) -> str:
    """Return the round as a text table; `colour` adds terminal colours, `program` is the command of its next step."""
    page, console = _console(colour=colour)
    _head(console, verdict.verdict, f"{clean(verdict.suite, 63)}, round {clean(verdict.round, 80)}", verdict.platforms)
    for name, result in verdict.platforms.items():
        _explain(console, name, result)
    for note in verdict.notes:
        _line(console, f"note: {clean(note)}")
    _time(console, verdict.timings)
    for word, value in (
        ("report", verdict.report),
        ("run", verdict.flow_run),
        ("next", next_step(verdict, suite_file, program)),
    ):
        if value:
            # Addresses and commands are never wrapped or cut, so that they can be copied.
            page.write(f"{word:7}{one_line(value)}\n")
    return _text(page)


def comparison_table(
    judgement: Judgement, reference: LoadedRecord, candidate: LoadedRecord, *, colour: bool = False
) -> str:
    """Return the judgement of two records as a round's table, with all checks and their numbers."""
    from plumbline.judge.rounds import record_numbers

    page, console = _console(colour=colour)
    base, name = (clean(name, 80) for name in pair_names(reference.record, candidate.record))
    name = base if reference is candidate else name
    result = PlatformResult(**judgement.model_dump(), **record_numbers(candidate.record))
    beside = "by itself" if reference is candidate else f"against {base}"
    title = f"{name} {beside}, {clean(candidate.record.spec.workload, 63)}"
    _head(console, judgement.verdict, title, {name: result})
    _explain(console, name, result)
    for line in _grounds(judgement):
        _line(console, line)
    return _text(page)


def judgement_lines(judgement: Judgement) -> list[str]:
    """Return a judgement as lines without a table: its place and first cause, then the lines of `comparison_table`."""
    causes = [f"{cause.code} ({cause.sure}): {clean(cause.why)}" for cause in judgement.causes]
    result = PlatformResult(**judgement.model_dump())
    at = f"{place(judgement.first_divergence)}: " if judgement.first_divergence else ""
    head = f"{judgement.verdict}: {at}{causes[0] if causes else clean(_words(result))}"
    return [head, *(f"cause: {line}" for line in causes[1:]), *_grounds(judgement)]


def _grounds(judgement: Judgement) -> Iterator[str]:
    """Yield what causes rest on, all checks and all notes, a line each."""
    for cause in judgement.causes:
        for line in (*cause.evidence, *(f"suspect {name}" for name in cause.suspects), *cause.tried):
            yield f"  {clean(line)}"
    yield ""
    for finding in sorted(judgement.findings, key=lambda finding: finding.outcome == "pass"):
        detail = f": {clean(finding.detail)}" if finding.detail else ""
        yield f"{SYMBOLS[finding.outcome]} {_measured(finding, with_source=False)}{detail}"
    for note in judgement.notes:
        yield f"note: {clean(note_line(note))}"


def _console(*, colour: bool) -> tuple[io.StringIO, Console]:
    from rich.console import Console

    page = io.StringIO()
    return page, Console(
        file=page, width=_WIDTH, force_terminal=colour, color_system="standard" if colour else None,
        highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip


def _head(console: Console, verdict: Outcome, title: str, platforms: Mapping[str, PlatformResult]) -> None:
    """Print the verdict, the table, and the accuracies between which the results lie."""
    from rich.text import Text

    console.print(Text(f"{SYMBOLS[verdict]} {verdict.upper()}", style=f"bold {_COLOURS[verdict]}"), end=" ")
    console.print(Text(title))
    console.print()
    console.print(_table(platforms))
    if line := scale_of(list(platforms.values())):
        _line(console, f"\n{line}")


def _line(console: Console, line: str) -> None:
    from rich.text import Text

    console.print(Text(line), soft_wrap=True)


def _text(page: io.StringIO) -> str:
    # A long word that was wrapped may begin a line with a command.
    return inert("\n".join(line.rstrip() for line in page.getvalue().split("\n")).rstrip("\n") + "\n")


def _table(platforms: Mapping[str, PlatformResult]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("platform", overflow="fold", max_width=22)
    table.add_column("verdict", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("samples/s", justify="right", no_wrap=True)
    table.add_column("first divergence", overflow="fold", ratio=3, min_width=18)
    table.add_column("cause", overflow="fold", ratio=2, min_width=14)
    for name, result in platforms.items():
        symbol = Text(f"{SYMBOLS[result.verdict]} {result.verdict}", style=f"bold {_COLOURS[result.verdict]}")
        accuracy = percent(result.accuracy, 2)
        rate = NONE if result.samples_per_second is None else number(result.samples_per_second)
        cause = NONE if result.unavailable and not result.causes else cause_line(result)
        table.add_row(
            Text(clean(name, 63)), symbol, Text(accuracy), Text(rate), Text(place(result.first_divergence)), Text(cause)
        )
    return table


def _explain(console: Console, name: str, result: PlatformResult) -> None:
    """Print the reason of each cause and failed check."""
    from rich.padding import Padding
    from rich.text import Text

    if result.verdict == "pass":
        return
    gone = result.unavailable if result.verdict == "inconclusive" else ""
    reasons: list[Statement] = [
        f"cause: {cause.code} ({cause.sure}): {sentence_of(cause.why)}" for cause in result.causes
    ]
    lines = [f"{clean(name, 63)}: {clean(reason, 240)}" for reason in reasons or [gone or _words(result)]]
    lines += [_measured(finding) for finding in _first_of_each_part(result)]
    wrapped = [piece for line in lines for piece in textwrap.wrap(line, console.width, subsequent_indent="  ")]
    console.print(Padding(Text("\n".join(wrapped)), (1, 0, 0, 0)))


def _first_of_each_part(result: PlatformResult) -> list[Finding]:
    """Return the first failed finding of each training part and gate.

    Each gate measures a loss of its own.
    """
    chosen: dict[tuple[str, ...], Finding] = {}
    for finding in result.findings:
        if finding.outcome == result.verdict and finding.observed is not None:
            own_check = finding.check.removeprefix(f"{finding.workload}.")
            part = own_check if own_check.startswith(_GATES) else own_check.split(".")[0]
            chosen.setdefault((finding.workload, part), finding)
    return list(chosen.values())


def _measured(finding: Finding, *, with_source: bool = True) -> str:
    check, metric = clean(finding.check, 60), clean(finding.metric, 160)
    text = f"{check}: {metric}" if metric else check
    if isinstance(finding.observed, str) and isinstance(finding.limit, str):
        text += f": {clean(finding.limit, 80)} → {clean(finding.observed, 80)}"
    elif finding.observed is not None:
        is_count = finding.outcome == "pass" and not finding.unit and finding.observed == finding.limit != 0
        limit = f", limit {amount(finding.limit, finding.unit)}" if finding.limit is not None and not is_count else ""
        text += f": {'all ' if is_count else ''}{amount(finding.observed, finding.unit)}{limit}"
    return f"{text}, against {source_of(finding.against)}" if finding.against and with_source else text


def _words(result: PlatformResult) -> Statement:
    finding = deciding(result)
    return finding.detail or finding.metric or finding.check if finding else "no finding gives a reason"


def _time(console: Console, timings: Mapping[str, float]) -> None:
    from rich.text import Text

    least = timings.get("total", 0.0) / 100
    known = ((name, value) for name, value in timings.items() if name != "total" and value >= least)
    phases = sorted(known, key=lambda entry: -entry[1])
    text = ", ".join(f"{clean(name, 30)} {seconds(value)}" for name, value in phases[:_TOP_PHASES])
    total = f"{seconds(timings['total'])}: " if "total" in timings else ""
    console.print()
    if text or total:
        wrapped = textwrap.wrap(f"time   {total}{text}", console.width, subsequent_indent=" " * 7)
        console.print(Text("\n".join(wrapped)))


def next_step(verdict: RoundVerdict, suite_file: str = "", program: str = "plumbline") -> str:
    """Return the next command or action to suggest."""
    suite = suite_file or "SUITE"
    accept = f"{program} baseline accept {suite} --round {clean(verdict.round, 80)}"
    if verdict.verdict == "pass":
        without = _without_baseline(verdict)
        only = _options(without) if len(without) < len(verdict.platforms) else ""
        why = _changed_task(verdict) or f"no baseline yet: {listed(without)}"
        return f"{accept}{only} ({why})" if without else ""
    if verdict.verdict == "inconclusive":
        if any(result.unavailable for result in verdict.platforms.values()) or not verdict.platforms:
            return f"{program} doctor {suite}"
        return "open the report: it names the missing evidence"
    if verdict.verdict == "invalid":
        return "open the report: it names the record that cannot be judged, and the reason"
    drifted = _options([clean(name, 63) for name, result in verdict.platforms.items() if result.verdict == "drift"])
    return f"open the report; if the change is intended: {accept}{drifted} --force --reason WHY"


def _options(platforms: Sequence[str]) -> str:
    return "".join(f" --platform {name}" for name in platforms)


def _without_baseline(verdict: RoundVerdict) -> Sequence[str]:
    return [
        clean(name, 63)
        for name, result in verdict.platforms.items()
        if any(note.code == "no-baseline" for note in result.notes)
    ]


def _changed_task(verdict: RoundVerdict) -> str:
    """Return why accepted baselines do not apply, for the first such platform."""
    texts = (note.text for result in verdict.platforms.values() for note in result.notes if note.code == "no-baseline")
    return next((clean(sentence_of(text)) for text in texts if getattr(text, "code", "") == "round.other-task"), "")
