"""`plumbline calibrate SUITE`: the noise floor of each platform, and the limit that keeps false alarms rare."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from plumbline.central import CentralStore
from plumbline.cli.history import read_rounds
from plumbline.cli.options import at_least
from plumbline.errors import ConfigurationError, ExitCode
from plumbline.judge.history import nights
from plumbline.judge.noise import NoiseFloor, noise_floor, recommended_drop
from plumbline.schema.suite import Suite, read_suite
from plumbline.stores import open_store

__all__ = ["register", "run"]


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser("calibrate", help="noise floors, and the limits they ask for", description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--last", type=int, default=60, metavar="N", help="of as many rounds at most (default: 60)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure the spread over the rounds that passed, and say which limit it asks for."""
    last = at_least("--last", args.last, 1)
    suite = read_suite(args.suite)
    rounds = read_rounds(CentralStore(open_store(suite.store)), suite.name, last)
    floors: dict[str, NoiseFloor] = {}
    for name in suite.platforms:
        passed = [one.samples_per_second for one in nights(rounds, name) if one.verdict == "pass"]
        floors[name] = noise_floor([value for value in passed if value is not None])
    if not any(floor.runs for floor in floors.values()):
        mend = "run it at least three times on quiet machines: `plumbline run`"
        raise ConfigurationError("has no passed round that measured speed", where=str(args.suite), mend=mend)
    limits = {name: _limit(suite, floor) for name, floor in floors.items()}
    if args.json:
        document = {name: {"noise": floors[name].to_json(), "throughput_drop": limits[name]} for name in floors}
        print(json.dumps({"suite": suite.name, "platforms": document}, indent=2))
    else:
        for name, floor in floors.items():
            _print(name, floor, limits[name], suite)
    return int(ExitCode.PASS)


def _limit(suite: Suite, floor: NoiseFloor) -> float | None:
    return recommended_drop(floor, platforms=len(suite.platforms), false_alarms_a_year=suite.gates.false_alarms_a_year)


def _print(name: str, floor: NoiseFloor, limit: float | None, suite: Suite) -> None:
    if floor.relative_sd is None or limit is None:
        print(f"{name}: {floor.runs} passed runs with a speed; at least three are needed")
        return
    now = suite.platforms[name].throughput_drop or suite.gates.throughput_drop
    rare = f"{suite.gates.false_alarms_a_year:g} false alarms a year"
    verdict = "holds" if now >= limit else "is too tight"
    print(
        f"{name}: varies by {floor.relative_sd:.2%} over {floor.runs} runs, autocorrelation {floor.autocorrelation:.2f}"
    )
    print(f"  throughput_drop of at least {limit:.4f} keeps to {rare}; the suite's {now:g} {verdict}")
