"""`plumbline baseline calibrate SUITE`: measure each platform's noise, and recommend limits."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.cli.nights import open_central, read_all_series, read_lines, read_nights
from plumbline.cli.options import at_least, say
from plumbline.night.noise_floor import NoiseFloor, problem_of, recommended_limit, widest_floor
from plumbline.night.rounds.nights import limits_of
from plumbline.night.rounds.series import accepted_times
from plumbline.schema.delimited import decoded
from plumbline.schema.errors import ConfigurationError, ExitCode, InconclusiveError
from plumbline.schema.suite import Suite, read_suite


def add(commands: Any) -> None:
    """Add the command `baseline calibrate`."""
    parser = commands.add_parser("calibrate", help="measure noise floors, and recommend limits", description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    parser.add_argument("--last", type=int, default=60, metavar="N", help="maximum number of nights (default: 60)")
    parser.add_argument("--write", action="store_true", help="write throughput_drop of each platform into the suite")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure the noise over all nights; print or write the limits."""
    last = at_least("--last", args.last, 1)
    suite = read_suite(args.suite)
    central = open_central(suite.store)
    series = read_all_series(central, suite, list(suite.platforms))
    nights = read_nights(central, suite, series, last)
    allowed = limits_of(suite)
    floors, limits = {}, {}
    accepted = accepted_times(central)
    for name in suite.platforms:
        lines = read_lines(series[name], nights[name], accepted.get(name, {}))
        lines = tuple(line for line in lines if line.metric.name == "throughput")
        floors[name] = widest_floor(lines, last)
        limits[name] = recommended_limit(floors[name], allowed)
    if not any(floor.runs for floor in floors.values()):
        hint = "run at least three rounds on quiet machines: `plumbline run`"
        raise ConfigurationError("has no night with a measured throughput", where=str(args.suite), hint=hint)
    problems = {name: why for name, floor in floors.items() if (why := problem_of(floor, limits[name], allowed))}
    if args.write:
        usable = {name: limit for name, limit in limits.items() if limit is not None and name not in problems}
        _write(args.suite, usable, floors)
    if args.json:
        document = {
            name: {"noise": floors[name].to_json(), "throughput_drop": limits[name], "problem": problems.get(name, "")}
            for name in floors
        }
        written = {"written": str(args.suite)} if args.write else {}
        print(json.dumps({"suite": suite.name, "platforms": document, **written}, indent=2))
    else:
        for name, floor in floors.items():
            _print(name, floor, limits[name], suite, problems.get(name, ""))
    if args.write and problems:
        where = f"{args.suite}: platforms.{', '.join(problems)}"
        error = InconclusiveError("nothing is written for it", where=where, hint=next(iter(problems.values())))
        say(f"plumbline: {error}", to_stderr=True)  # not raised: the answer is printed, and --json prints one document
        return int(error.exit_code)
    return int(ExitCode.PASS)


def _print(name: str, floor: NoiseFloor, limit: float | None, suite: Suite, problem: str) -> None:
    if problem or limit is None:
        say(f"{name}: {problem}")
        return
    now = suite.platforms[name].throughput_drop or suite.gates.throughput_drop
    verdict = "holds" if now >= limit else "is too tight"
    print(
        f"{name}: varies by {floor.relative_sd:.2%} over {floor.runs} runs, autocorrelation {floor.autocorrelation:.2f}"
    )
    print(f"  throughput_drop of {limit:.4f} or more needs reruns rarely enough; the suite's {now:g} {verdict}")


def _write(path: Path, limits: Mapping[str, float], floors: Mapping[str, NoiseFloor]) -> None:
    """Write each platform's limit into the suite file, preserving comments."""
    text = decoded(path.read_bytes()).replace("\r\n", "\n")
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    for name, limit in limits.items():
        floor = floors[name]
        why = f"calibrated {today}: SD {floor.relative_sd or 0:.2%} over {floor.runs} nights"
        text = _with_limit(text, name, f"throughput_drop = {limit:.4f} # {why}", where=str(path))
    path.write_text(text, encoding="utf-8")


def _with_limit(text: str, platform: str, line: str, *, where: str) -> str:
    header = re.compile(
        rf'^\[platforms\.(?:{re.escape(platform)}|"{re.escape(platform)}")\][ \t]*(?:#.*)?$', re.MULTILINE
    )
    found = header.search(text)
    if found is None:
        hint = f"write the platform as a table, [platforms.{platform}], or set throughput_drop yourself"
        raise ConfigurationError("no such table", where=where, key=f"platforms.{platform}", hint=hint)
    after = re.compile(r"^\[", re.MULTILINE).search(text, found.end())
    end = after.start() if after else len(text)
    table = text[found.end() : end]
    known = re.compile(r"^throughput_drop[ \t]*=.*$", re.MULTILINE)
    table = known.sub(lambda _: line, table, count=1) if known.search(table) else f"\n{line}{table}"
    return text[: found.end()] + table + text[end:]
