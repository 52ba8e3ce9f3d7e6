"""`plumbline history SUITE`: the rounds of a suite, and what changed over them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plumbline.central import CentralStore
from plumbline.cli.options import at_least
from plumbline.errors import ConfigurationError, ExitCode, InvalidInputError
from plumbline.judge.history import Night, nights, trend
from plumbline.schema.suite import read_suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import ObjectMissingError, open_store
from plumbline.workfolder import check_round_id

__all__ = ["latest_first", "read_round", "read_rounds", "register", "run"]


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser("history", help="what happened over time", description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--platform", help="only this one")
    parser.add_argument("--last", type=int, default=90, metavar="N", help="as many rounds at most (default: 90)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def read_round(central: CentralStore, wanted: str, where: str) -> RoundVerdict:
    """The round of this id, which stands in `where`; `ConfigurationError` if it is none, or there is none of it."""
    try:
        return central.get_round(check_round_id(wanted, where=where))
    except ObjectMissingError as error:
        mend = "`plumbline history SUITE` lists the rounds"
        raise ConfigurationError(f"there is no round {wanted!r}", where=central.store.url, mend=mend) from error


def latest_first(central: CentralStore) -> Iterator[RoundVerdict]:
    """The rounds of all suites; one that cannot be read is named on stderr, and takes no other with it."""
    for name in reversed(central.list_rounds()):
        try:
            yield central.get_round(name)
        except InvalidInputError as error:
            print(f"plumbline: the round {name} is left out: {error}", file=sys.stderr)


def read_rounds(central: CentralStore, suite: str, last: int) -> list[RoundVerdict]:
    """The suite's last rounds, the oldest first."""
    found: list[RoundVerdict] = []
    for one in latest_first(central):
        if one.suite in ("", suite):
            found.append(one)
        if len(found) == last:
            break
    return found[::-1]


def run(args: argparse.Namespace) -> int:
    """Print the nights, platform by platform."""
    last = at_least("--last", args.last, 1)
    suite = read_suite(args.suite)
    if args.platform is not None and args.platform not in suite.platforms:
        mend = ", ".join(suite.platforms)
        raise ConfigurationError(f"there is no platform {args.platform!r}", where=str(args.suite), mend=mend)
    rounds = read_rounds(CentralStore(open_store(suite.store)), suite.name, last)
    platforms = [args.platform] if args.platform else list(suite.platforms)
    told = {name: nights(rounds, name) for name in platforms}
    trends = {name: trend(told[name]) for name in platforms}
    if args.json:
        document = {
            name: {"nights": [one.to_json() for one in told[name]], "trend": trends[name].to_json()}
            for name in platforms
        }
        print(json.dumps({"suite": suite.name, "platforms": document}, indent=2, ensure_ascii=False))
        return int(ExitCode.PASS)
    if not rounds:
        print("no round yet: start one with `plumbline run`")
    for name in platforms:
        _print(name, told[name], (*trends[name].changes, trends[name].creep))
    return int(ExitCode.PASS)


def _print(platform: str, told: tuple[Night, ...], lines: tuple[str, ...]) -> None:
    if told:
        print(platform)
    for one in told:
        accuracy = "" if one.accuracy is None else f"  accuracy {one.accuracy:.4f}"
        speed = "" if one.samples_per_second is None else f"  {one.samples_per_second:.4g} samples/s"
        causes = f"  {', '.join(one.causes)}" if one.causes else ""
        print(f"  {one.round}  {one.verdict}{accuracy}{speed}{causes}")
    for line in lines:
        if line:
            print(f"  {line}")
