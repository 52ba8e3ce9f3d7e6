"""`plumbline baseline list/show/accept/reject`: the approved records of each platform."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plumbline.baseline import Baseline, BaselineBook
from plumbline.baseline.book import baseline_key
from plumbline.central import CentralStore
from plumbline.cli.history import read_round, read_rounds
from plumbline.errors import ConfigurationError, ExitCode, InconclusiveError, InvalidInputError
from plumbline.rounds.judging import BASELINE_CHECK
from plumbline.schema.record import RunRecord, read_record
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store

__all__ = ["last_round", "register", "run"]

_REPLACED = "`plumbline baseline accept SUITE` replaces it and its accepted records: put a copy back, if there is one"


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser("baseline", help="the approved records of each platform", description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    for name, words in (
        ("list", "every baseline of the suite's store"),
        ("show", "the accepted records of one or all platforms"),
        ("accept", "approve the records of a round: the next rounds are held against them"),
        ("reject", "take an accepted record out again"),
    ):
        command = commands.add_parser(name, help=words, description=words)
        command.add_argument("suite", type=Path)
        command.add_argument("--json", action="store_true", help="print one JSON document")
        if name != "list":
            command.add_argument("--platform", action="append", default=[], help="only this one; may stand repeatedly")
        if name == "accept":
            command.add_argument("--round", default="", help="the round whose records are approved (default: the last)")
        if name == "reject":
            command.add_argument("--record", default="", help="the record (default: the one accepted last)")
        command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do what was asked, and print what stands afterwards."""
    suite = read_suite(args.suite)
    central = CentralStore(open_store(suite.store))
    damaged: Mapping[str, str] = {}
    if args.action == "list":
        baselines, damaged = BaselineBook(central).list()
    else:
        platforms = _platforms(suite, args.platform)
        if args.action == "show":
            baselines, damaged = _of(central, platforms)
        else:
            change = _accept if args.action == "accept" else _reject
            baselines = tuple(change(args, suite, central, platforms))
    for why in damaged.values():
        print(f"plumbline: a baseline is damaged: {why} ({_REPLACED})", file=sys.stderr)
    if args.json:
        told = [{**one.to_json(), "current": one.current} for one in baselines]
        print(json.dumps({"baselines": told, "damaged": dict(damaged)}, indent=2))
    elif baselines or not damaged:
        _print(baselines)
    return int(ExitCode.INVALID if damaged else ExitCode.PASS)


def last_round(central: CentralStore, suite: str, wanted: str = "") -> RoundVerdict:
    """The round of this id, or the suite's last; `ConfigurationError` if there is none."""
    if wanted:
        return read_round(central, wanted, "--round")
    if found := read_rounds(central, suite, 1):
        return found[0]
    raise ConfigurationError("has no round yet", where=suite, mend="start one with `plumbline run`")


def _platforms(suite: Suite, asked: Sequence[str]) -> list[str]:
    for name in asked:
        if name not in suite.platforms:
            raise ConfigurationError(
                f"there is no platform {name!r}", where=suite.name, mend=", ".join(suite.platforms)
            )
    return list(asked or suite.platforms)


def _of(central: CentralStore, platforms: Sequence[str]) -> tuple[tuple[Baseline, ...], dict[str, str]]:
    """The baselines of these platforms, and why those that are damaged are so."""
    found, damaged = BaselineBook(central).list()
    ends = tuple(f"/{name}.json" for name in platforms)
    return (
        tuple(one for one in found if one.platform in platforms),
        {key: why for key, why in damaged.items() if key.endswith(ends)},
    )


def _accept(args: argparse.Namespace, suite: Suite, central: CentralStore, platforms: list[str]) -> list[Baseline]:
    verdict = last_round(central, suite.name, args.round)
    records = [record for name in platforms if name in verdict.platforms for record in _records(central, verdict, name)]
    if not records:
        raise InconclusiveError("holds no record of these platforms", where=f"round {verdict.round}")
    book = BaselineBook(central)
    _, damaged = _of(central, platforms)
    for record in records:
        if why := damaged.get(baseline_key(record.spec_sha256, record.platform)):
            print(f"plumbline: replaces a damaged baseline and its accepted records: {why}", file=sys.stderr)
    return [book.accept(record) for record in records]


def _records(central: CentralStore, verdict: RoundVerdict, platform: str) -> list[RunRecord]:
    """The round's records of a platform, one for each RunSpec: the first is the night's, a later one its rerun."""
    result = verdict.platforms[platform]
    # That its last baseline is damaged is a reason to accept this record, and none against it.
    wrong = [one for one in result.findings if one.outcome == "invalid" and not one.check.endswith(BASELINE_CHECK)]
    if result.verdict == "invalid" and (wrong or not result.findings):
        detail = wrong[0].detail if wrong else ""
        raise InconclusiveError(f"is invalid and cannot be approved: {detail}", where=f"{verdict.round}: {platform}")
    found: dict[str, RunRecord] = {}
    with tempfile.TemporaryDirectory(prefix="plumbline-") as folder:
        for record_id in result.records:
            record = read_record(central.get_record(record_id, Path(folder)))
            found.setdefault(record.spec_sha256, record)
    return list(found.values())


def _reject(args: argparse.Namespace, _suite: Suite, central: CentralStore, platforms: list[str]) -> list[Baseline]:
    book = BaselineBook(central)
    found, damaged = _of(central, platforms)
    known = list(found)
    if args.record:
        known = [one for one in known if args.record in {entry.record_id for entry in one.records}]
    if not known and damaged:
        raise InvalidInputError(f"a baseline is damaged: {next(iter(damaged.values()))}", mend=_REPLACED)
    if not known:
        raise ConfigurationError("there is no such accepted record", mend="`plumbline baseline show` lists them")
    return [book.reject(one.spec_sha256, one.platform, args.record or None) for one in known]


def _print(baselines: Sequence[Baseline]) -> None:
    if not baselines:
        print("no baseline yet: approve the records of a round with `plumbline baseline accept SUITE`")
    for one in baselines:
        print(f"{one.platform}  {one.workload}  spec {one.spec_sha256[:12]}  {len(one.records)} accepted")
        for entry in one.records:
            speed = "" if entry.samples_per_second is None else f"  {entry.samples_per_second:.4g} samples/s"
            accuracy = "" if entry.accuracy is None else f"  accuracy {entry.accuracy:.4f}"
            mark = "  ← current" if entry.record_id == one.current else ""
            print(f"  {entry.started_at:%Y-%m-%d %H:%M}  {entry.record_id}{accuracy}{speed}{mark}")
        if one.noise.relative_sd is not None:
            print(f"  noise floor {one.noise.relative_sd:.2%} of the throughput over {one.noise.runs} runs")
