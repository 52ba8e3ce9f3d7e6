"""`plumbline history SUITE` or `--from FILE`: show changes over time, as nightly rounds judge them."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plumbline.cli.exchange.external import Receipt, accepted_since, parse_external
from plumbline.cli.exchange.external_columns import TableChoice
from plumbline.cli.exchange.external_formats import UNNAMED
from plumbline.cli.exchange.external_values import time_of
from plumbline.cli.nights import Night, open_central, read_all_series, read_lines, read_nights
from plumbline.cli.options import at_least, check_file, say, summary
from plumbline.data.datasets.files import files_below
from plumbline.data.datasets.readers import format_of
from plumbline.data.datasets.streams import read_text
from plumbline.judge.history.allowed import allowed_for
from plumbline.judge.history.metrics import Worse
from plumbline.judge.history.segments import MetricHistory
from plumbline.night.central import CentralStore
from plumbline.night.central.series import rebuild_series, records_of_rounds, write_series
from plumbline.night.rounds.nights import limits_of
from plumbline.night.rounds.series import accepted_times
from plumbline.report.history import change_sentence, level_sentence
from plumbline.report.junit import series_junit
from plumbline.report.markdown import series_summary
from plumbline.report.sentences import clean, counted
from plumbline.report.site import history_page
from plumbline.report.summary import LineSummary, summarise, summarise_both_ways
from plumbline.schema.errors import ConfigurationError, ExitCode, InvalidInputError
from plumbline.schema.escape import first_of
from plumbline.schema.suite import Gates, Suite, read_suite
from plumbline.schema.verdict import Outcome, exit_code, worst

_MAX_BYTES = 256 << 20
_REPORTS = {"html": "a page with charts", "junit": "JUnit XML", "summary": "Markdown for a CI job's summary"}
_OF_FILES = ("accept", "time", "metric", "higher_is_worse", "lower_is_worse")
_LAST = 90
_MOVED = frozenset({"lasting", "open-call", "improved", "no-direction"})
"""Reasons of a level that stays moved until a person accepts it."""
_SERIES = 40
"""Number of series that share one false drift a year, and the nights of a year on which a detector may be wrong.

A series of a smaller file is judged alike, whatever others the file has; those of a larger file share the same."""
_LOOKS_A_YEAR = 12.0


def register(subparsers: Any) -> None:
    """Add the command `history` to the parser."""
    parser = subparsers.add_parser("history", help=summary(__doc__), description=__doc__)
    parser.add_argument("suite", type=Path, nargs="?", help="the suite file")
    parser.add_argument(
        "--from",
        type=Path,
        dest="source",
        metavar="FILE",
        help="judge the series of a file that another tool wrote: CSV, JSON, JSON lines, Bencher, Conbench, Otava; of "
        "a folder all its tables, such as the results of asv. Exit code 1 for a loss",
    )
    for way, size in (("higher", "larger"), ("lower", "smaller")):
        parser.add_argument(
            f"--{way}-is-worse",
            action="append",
            default=[],
            metavar="METRIC",
            help=f"with --from: a {size} value of this metric is a loss; may be repeated (default: by its name)",
        )
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="SERIES=DATE",
        help="with --from: the level of a series since this date is intended, and its reference. SERIES is a metric, "
        "or platform, workload and metric as they are printed; a date after its last value closes it; may be repeated",
    )
    parser.add_argument("--time", default="", metavar="COLUMN", help="with --from: the column of the time")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="with --from: judge this metric only; may be repeated",
    )
    parser.add_argument("--platform", help="only this platform")
    parser.add_argument("--last", type=int, metavar="N", help=f"maximum number of nights (default: {_LAST})")
    parser.add_argument("--rebuild", action="store_true", help="rebuild the series files from the records")
    for name, about in _REPORTS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"with --from: write the answer as {about}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the nights and the lines of each platform."""
    if (args.suite is None) == (args.source is None):
        raise ConfigurationError("use either a suite or --from FILE", where="history")
    _check_options(args)
    if args.source is not None:
        return _external(args)
    last = at_least("--last", _LAST if args.last is None else args.last, 1)
    suite = read_suite(args.suite)
    if args.platform is not None and args.platform not in suite.platforms:
        hint = ", ".join(suite.platforms)
        raise ConfigurationError(f"the platform {args.platform!r} does not exist", where=str(args.suite), hint=hint)
    platforms = [args.platform] if args.platform else list(suite.platforms)
    central = open_central(suite.store)
    if args.rebuild:
        _rebuild(central, suite)
    series = read_all_series(central, suite, platforms)
    nights = read_nights(central, suite, series, last)
    accepted = accepted_times(central)
    lines = {name: read_lines(series[name], nights[name], accepted.get(name, {})) for name in platforms}
    summaries = {
        name: [summarise(line, limits_of(suite, name), last=last) for line in lines[name]] for name in platforms
    }
    if args.json:
        document = {
            name: {
                "nights": [night.to_json() for night in nights[name]],
                "lines": [line.to_json() for line in summaries[name]],
            }
            for name in platforms
        }
        print(json.dumps({"suite": suite.name, "platforms": document}, indent=2))
        return int(ExitCode.PASS)
    if not any(nights.values()):
        print("no round yet: start one with `plumbline run`")
    for name in platforms:
        _print_nights(name, nights[name])
        _print_lines(summaries[name])
    return int(ExitCode.PASS)


def _check_options(args: argparse.Namespace) -> None:
    """Raise for an option that would not be used, and for a report that cannot be written."""
    of_others = ("last", "rebuild") if args.source is not None else (*_REPORTS, *_OF_FILES)
    if given := next((name for name in of_others if getattr(args, name)), ""):
        hint = (
            "`plumbline store site SUITE` writes a page for each platform, `plumbline report` a round's files; "
            "`plumbline baseline accept` accepts a level"
        )
        what, hint = ("is for a suite", "") if args.source is not None else ("is for --from FILE", hint)
        raise ConfigurationError(what, where="history", key=f"--{given.replace('_', '-')}", hint=hint)
    for name in _REPORTS:
        if path := getattr(args, name):
            check_file(path, option=f"--{name}")


def _rebuild(central: CentralStore, suite: Suite) -> None:
    records = list(records_of_rounds(central, suite.name))
    for series in rebuild_series(central, suite.name, records, list(suite.platforms)).values():
        write_series(central, series)


def read_texts(source: Path) -> tuple[dict[str, str], list[str]]:
    """Return the texts of a file, or of all tables in a folder, by name, and the names of its other files."""
    paths = list(files_below(source).values()) if source.is_dir() else [source]
    tables = [path for path in paths if path == source or format_of(path.name) in ("csv", "json", "jsonl")]
    if not tables:
        raise ConfigurationError("the folder has no *.json file and no other table", where=str(source), key="--from")
    texts: dict[str, str] = {}
    for path in tables:
        texts[str(path)] = read_text(path, str(path), _MAX_BYTES - sum(map(len, texts.values())))
    return texts, sorted({str(path) for path in paths} - texts.keys())


def _external(args: argparse.Namespace) -> int:
    texts, unread = read_texts(args.source)
    external = parse_external(
        texts,
        unread=unread,
        where=str(args.source),
        worse=_worse(args),
        choice=TableChoice(args.time, tuple(args.metric)),
    )
    lines: Sequence[MetricHistory] = accepted_since(external.histories, _accepted(args), where=str(args.source))
    if args.platform is not None:
        lines = [line for line in lines if line.platform == args.platform]
    if not lines:
        raise ConfigurationError("contains no row of this platform", where=str(args.source), key="--platform")
    shared = max(len(lines), _SERIES)
    gates = Gates(questions_a_year=_LOOKS_A_YEAR)
    allowed = allowed_for(num_platforms=1, num_series=shared, gates=gates, has_experiments=False)
    assumed = {known.metric for known in external.receipt.directions if known.source == "assumed"}
    summaries = [
        summarise_both_ways(line, allowed) if line.metric.name in assumed else summarise(line, allowed, is_judged=False)
        for line in lines
    ]
    verdict = worst([summary.verdict for summary in summaries])
    words = f"judged without reruns, with at most one false drift a year in {shared} series"
    _write_reports(args, verdict, words, list(zip(lines, summaries, strict=True)))
    if args.json:
        receipt = external.receipt.to_json()
        lines_json = [summary.to_json() for summary in summaries]
        document = {
            "from": str(args.source),
            "verdict": verdict,
            "false_alarms_a_year": len(lines) / shared,
            "receipt": receipt,
        }
        print(json.dumps({**document, "lines": lines_json}, indent=2))
    else:
        _print_receipt(args.source, external.receipt)
        _print_lines(summaries)
        nights = Counter(change.since for line in summaries if line.reason in _MOVED for change in line.changes[-1:])
        for night, count in nights.most_common(1):
            if count > 1:
                say(f"  {count} of {len(summaries)} series changed on the same night, {night}: look for one cause")
        say(f"{verdict} ({words})")
        if any(summary.reason in _MOVED for summary in summaries):
            say("  if a change is intended: --accept SERIES=DATE makes the level since that date the reference")
    return int(exit_code(verdict))


def _write_reports(
    args: argparse.Namespace, verdict: Outcome, words: str, lines: Sequence[tuple[MetricHistory, LineSummary]]
) -> None:
    source, summaries = args.source.name, [summary for _, summary in lines]
    if args.html:
        args.html.write_text(history_page(source, verdict, words, lines), encoding="utf-8")
    if args.junit:
        args.junit.write_text(series_junit(source, summaries), encoding="utf-8")
    if args.summary:
        # A job's summary may have the text of earlier steps.
        with args.summary.open("a", encoding="utf-8") as file:
            file.write(series_summary(source, verdict, words, summaries))


def _accepted(args: argparse.Namespace) -> dict[str, float]:
    """Parse the times from which a person accepts a series' new values."""
    accepted = {}
    for text in args.accept:
        name, _, date = text.rpartition("=")
        try:
            accepted[name] = time_of(date, "history")
        except InvalidInputError as error:
            hint = "SERIES=DATE, such as throughput=2026-11-22"
            raise ConfigurationError(f"{text!r} has no date", where="history", key="--accept", hint=hint) from error
    return accepted


def _worse(args: argparse.Namespace) -> dict[str, Worse]:
    """Parse the metric directions given as options; raise for contradictions."""
    named: dict[str, Worse] = dict.fromkeys(args.lower_is_worse, "lower")
    for name in args.higher_is_worse:
        if name in named:
            raise ConfigurationError(f"{name!r} has --lower-is-worse too", where="history", key="--higher-is-worse")
        named[name] = "higher"
    return named


_SOURCES = {
    "option": "by option",
    "name": "by name",
    "tool": "as the tool that wrote the file has it",
    "assumed": "assumed; --{other}-is-worse METRIC changes it",
}


def _print_receipt(source: Path, receipt: Receipt) -> None:
    """Print how the file was interpreted: assumptions, ignored and missing columns."""
    rows, series = counted(receipt.rows, "rows"), counted(receipt.num_series, "series")
    say(f"{source}: {rows}, {receipt.first} to {receipt.last}, {series}")
    groups: dict[tuple[Worse, str], list[str]] = {}
    for direction in receipt.directions:
        groups.setdefault((direction.worse, direction.source), []).append(clean(direction.metric, 80))
    for (way, by), names in groups.items():
        about = _SOURCES[by].format(other="lower" if way == "higher" else "higher")
        say(f"  {way} is worse: {first_of(names)} ({about})")
    if signed := [clean(direction.metric, 80) for direction in receipt.directions if direction.has_sign]:
        say(f"  zero or negative values: {first_of(signed)}; changes are shares of the typical size")
    if receipt.repeated:
        many = f"{receipt.repeated} rows repeat a time of their series"
        repeat = "1 row repeats a time of its series" if receipt.repeated == 1 else many
        say(f"  {repeat}: the last row with a value counts")
    if receipt.ignored_columns:
        say(f"  ignored columns and metrics: {first_of([clean(name, 80) for name in receipt.ignored_columns], 20)}")
    if receipt.ignored_files:
        names = [clean(Path(name).name, 80) for name in receipt.ignored_files]
        say(f"  {counted(len(names), 'files')} without measurements, or of another kind: {first_of(names)}")
    for ended in receipt.ended:
        about = clean(f"{ended.platform} {ended.workload} {ended.metric}")
        since = f"last value {ended.last}, {counted(ended.missing_nights, 'nights')} before the newest row"
        say(f"  {about}: {since} (--accept SERIES=DATE with a later date closes it)")


def _print_nights(platform: str, nights: Sequence[Night]) -> None:
    if nights:
        say(platform)
    for night in nights:
        accuracy = "" if night.accuracy is None else f"  accuracy {night.accuracy:.4f}"
        speed = "" if night.samples_per_second is None else f"  {night.samples_per_second:.4g} samples/s"
        causes = f"  {', '.join(night.causes)}" if night.causes else ""
        say(f"  {night.round}  {night.verdict}{accuracy}{speed}{causes}")


def _print_lines(lines: Sequence[LineSummary]) -> None:
    new: dict[str, list[str]] = {}
    for line in lines:
        about = clean(" ".join(filter(None, (line.platform, line.workload, line.metric)))).removeprefix(f"{UNNAMED} ")
        sentence = clean(line.sentence, 1000).removeprefix(f"{line.workload}: {line.metric}; ")
        if line.reason == "learning" and not line.segments and not line.changes:
            new.setdefault(level_sentence(line), []).append(clean(line.metric))
            continue
        say(f"  {about}: {level_sentence(line)}")
        for start in line.segments:
            say(f"    {start.since} {start.round}: {start.what} changed: {start.before} → {start.after}")
        for change in line.changes:
            say(f"    {change_sentence(change)}")
        if line.reason not in ("quiet", "learning"):
            say(f"    last night: {line.verdict}, {sentence}")
    for level, names in new.items():
        say(f"  {level}: {first_of(names, 10)}")
