"""`plumbline baseline list/show/log/accept/reject/restore/calibrate`: list, accept or reject approved records."""

from __future__ import annotations

import argparse
import getpass
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.cli import calibrate
from plumbline.cli.nights import latest_round, read_round
from plumbline.cli.options import say, summary
from plumbline.data.staging.scratch import scratch_folder
from plumbline.data.stores import open_store
from plumbline.night.baseline import Accepted, Baseline, BaselineBook, DecisionNote, accepted, baseline_key
from plumbline.night.central import CentralStore
from plumbline.night.rounds.judging import BASELINE_CHECK
from plumbline.report.sentences import sentence_of
from plumbline.schema.errors import ConfigurationError, ExitCode, InconclusiveError, InvalidInputError
from plumbline.schema.record import RunRecord
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import RoundVerdict

_REPLACED = (
    "`plumbline baseline accept SUITE` replaces it and its accepted records; restore a copy first, if one exists"
)


def register(subparsers: Any) -> None:
    """Add the command `baseline` to the parser."""
    parser = subparsers.add_parser("baseline", help=summary(__doc__), description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    for name, description in (
        ("list", "list every baseline in the suite's store"),
        ("show", "show the accepted records of one or all platforms"),
        ("log", "show the log of decisions: author, time, reason"),
        ("accept", "approve the records of a round; later rounds are compared with them"),
        ("reject", "remove an accepted record from its baseline"),
        ("restore", "restore a rejected record"),
    ):
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument("suite", type=Path, help="the suite file")
        command.add_argument("--json", action="store_true", help="print one JSON document")
        if name != "list":
            command.add_argument("--platform", action="append", default=[], help="only this platform; may be repeated")
        if name == "accept":
            command.add_argument("--round", default="", help="the round whose records are approved (default: the last)")
            command.add_argument("--force", action="store_true", help="accept records of a round that did not pass")
            command.add_argument(
                "--anchor",
                action="store_true",
                help="make these records the anchor: cumulative loss is measured from them",
            )
        if name in ("reject", "restore"):
            command.add_argument(
                "--record", default="", help="the record (default: the last accepted or rejected record)"
            )
        if name in ("accept", "reject", "restore"):
            command.add_argument("--reason", default="", help="reason for the log; required by --force and --anchor")
        command.set_defaults(run=run)
    calibrate.add(commands)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand, and print the resulting baselines."""
    suite = read_suite(args.suite)
    central = CentralStore(open_store(suite.store))
    damaged: Mapping[str, str] = {}
    if args.action == "list":
        baselines, damaged = BaselineBook(central).list()
    elif args.action == "log":
        return _log(args, suite, central, _platforms(suite, args.platform))
    else:
        platforms = _platforms(suite, args.platform)
        if args.action == "show":
            baselines, damaged = _of(central, platforms)
        else:
            change = {"accept": _accept, "reject": _reject, "restore": _restore}[args.action]
            baselines = tuple(change(args, suite, central, platforms))
    for why in damaged.values():
        say(f"plumbline: a baseline is damaged: {why} ({_REPLACED})", to_stderr=True)
    if args.json:
        documents = [{**baseline.to_json(), "current": baseline.current} for baseline in baselines]
        print(json.dumps({"baselines": documents, "damaged": dict(damaged)}, indent=2))
    elif baselines or not damaged:
        _print(baselines)
    return int(ExitCode.INVALID if damaged else ExitCode.PASS)


def last_round(central: CentralStore, suite: str, wanted: str = "") -> RoundVerdict:
    """Return the round with this id, by default the suite's last."""
    if wanted:
        return read_round(central, suite, wanted, "--round")
    if (newest := latest_round(central, suite)) is not None:
        return newest
    raise ConfigurationError("has no round yet", where=suite, hint="start one with `plumbline run`")


def _platforms(suite: Suite, asked: Sequence[str]) -> list[str]:
    for name in asked:
        if name not in suite.platforms:
            raise ConfigurationError(
                f"the platform {name!r} does not exist", where=suite.name, hint=", ".join(suite.platforms)
            )
    return list(asked or suite.platforms)


def _of(central: CentralStore, platforms: Sequence[str]) -> tuple[tuple[Baseline, ...], dict[str, str]]:
    """Return these platforms' baselines, and the reasons of unreadable ones."""
    found, damaged = BaselineBook(central).list()
    ends = tuple(f"/{name}.json" for name in platforms)
    return (
        tuple(baseline for baseline in found if baseline.platform in platforms),
        {key: why for key, why in damaged.items() if key.endswith(ends)},
    )


def _note(args: argparse.Namespace, suite: Suite) -> DecisionNote:
    """Return a decision's author, time and reason; raise if incomplete."""
    forced, as_anchor = getattr(args, "force", False), getattr(args, "anchor", False)
    if (forced or as_anchor) and not args.reason.strip():
        option = "--force" if forced else "--anchor"
        raise ConfigurationError("needs a reason", where=option, hint="add --reason 'why'")
    try:
        author = getpass.getuser()
    except (KeyError, OSError):
        author = "unknown"
    now = datetime.now(UTC)
    return DecisionNote(
        who=author, when=now, why=args.reason.strip(), suite=suite.name, forced=forced, as_anchor=as_anchor
    )


def _accept(args: argparse.Namespace, suite: Suite, central: CentralStore, platforms: list[str]) -> list[Baseline]:
    note = _note(args, suite)
    verdict = last_round(central, suite.name, args.round)
    chosen = [name for name in platforms if name in verdict.platforms]
    if not note.forced:
        _refuse_other_than_pass(verdict, chosen)
    records = [record for name in chosen for record in _records(central, verdict, name)]
    if not records:
        raise InconclusiveError("contains no record of these platforms", where=f"round {verdict.round}")
    book = BaselineBook(central)
    _, damaged = _of(central, platforms)
    for record in records:
        if why := damaged.get(baseline_key(record.spec_sha256, record.platform)):
            say(f"plumbline: replaces a damaged baseline and its accepted records: {why}", to_stderr=True)
        else:
            for line in _compared(book.read(record.spec_sha256, record.platform), accepted(record)):
                say(f"plumbline: {record.platform}: {line}", to_stderr=True)
    return [book.accept(record, note) for record in records]


def _refuse_other_than_pass(verdict: RoundVerdict, platforms: Sequence[str]) -> None:
    """Raise for the first platform that drifted or is inconclusive."""
    for name in platforms:
        result = verdict.platforms[name]
        if result.verdict in ("drift", "inconclusive") and result.records:
            hint = "if the change is intended: --force --reason 'why'"
            text = f"is {result.verdict}, not a pass, and cannot be approved"
            raise ConfigurationError(text, where=f"{verdict.round}: {name}", hint=hint)


def _compared(baseline: Baseline | None, new: Accepted) -> list[str]:
    """Compare the new record with the latest and the first accepted."""
    if baseline is None or not baseline.records:
        return []
    pairs = [("the last baseline", baseline.records[-1])]
    anchor = baseline.anchor or baseline.records[0]
    if anchor.record_id != baseline.records[-1].record_id:
        pairs.append(("the anchor", anchor))
    lines = []
    for label, old in pairs:
        parts = []
        if old.samples_per_second and new.samples_per_second:
            parts.append(f"throughput {new.samples_per_second / old.samples_per_second - 1:+.2%}")
        if old.accuracy is not None and new.accuracy is not None:
            parts.append(f"accuracy {new.accuracy - old.accuracy:+.4f}")
        lines.append(f"against {label} {old.record_id}: {', '.join(parts) or 'no number in common'}")
    return lines


def _records(central: CentralStore, verdict: RoundVerdict, platform: str) -> list[RunRecord]:
    """Return a platform's records in the round, one per RunSpec, without reruns."""
    result = verdict.platforms[platform]
    # A damaged last baseline is a reason to accept this record.
    wrong = [
        finding
        for finding in result.findings
        if finding.outcome == "invalid" and not finding.check.endswith(BASELINE_CHECK)
    ]
    if result.verdict == "invalid" and (wrong or not result.findings):
        detail = wrong[0].detail if wrong else ""
        raise InconclusiveError(
            f"is invalid and cannot be approved: {sentence_of(detail)}", where=f"{verdict.round}: {platform}"
        )
    records: dict[str, RunRecord] = {}
    with scratch_folder() as folder:
        for record_id in result.records:
            record = central.get_record(record_id, folder).record
            records.setdefault(record.spec_sha256, record)
    return list(records.values())


def _reject(args: argparse.Namespace, suite: Suite, central: CentralStore, platforms: list[str]) -> list[Baseline]:
    """Reject the suite's last accepted record, or the named record."""
    book, note = BaselineBook(central), _note(args, suite)
    chosen_baselines, damaged = _of(central, platforms)
    chosen = []
    for baseline in chosen_baselines:
        own = [entry.record_id for entry in baseline.records if entry.suite == suite.name]
        own = [name for name in own if args.record in ("", name)]
        chosen += [(baseline, own[-1])] if own else []
    if not chosen and damaged:
        raise InvalidInputError(f"a baseline is damaged: {next(iter(damaged.values()))}", hint=_REPLACED)
    if not chosen:
        hint = "`plumbline baseline show` lists them"
        raise ConfigurationError("this suite has not accepted such a record", where=suite.name, hint=hint)
    return [book.reject(baseline.spec_sha256, baseline.platform, name, note) for baseline, name in chosen]


def _restore(args: argparse.Namespace, suite: Suite, central: CentralStore, platforms: list[str]) -> list[Baseline]:
    book, note = BaselineBook(central), _note(args, suite)
    chosen = []
    for baseline in book.everything()[0]:
        own = [
            entry.record_id
            for entry in baseline.rejected
            if baseline.platform in platforms and entry.suite == suite.name
        ]
        own = [name for name in own if args.record in ("", name)]
        chosen += [(baseline, own[-1])] if own else []
    if not chosen:
        hint = "`plumbline baseline log` lists them"
        raise ConfigurationError("no such record was rejected", where=suite.name, hint=hint)
    return [book.restore(baseline.spec_sha256, baseline.platform, name, note) for baseline, name in chosen]


def _log(args: argparse.Namespace, suite: Suite, central: CentralStore, platforms: Sequence[str]) -> int:
    """Print every decision on the suite's baselines, ordered by time."""
    entries = [
        {"platform": baseline.platform, "workload": baseline.workload, **entry.to_json()}
        for baseline in BaselineBook(central).everything()[0]
        for entry in baseline.log
        if baseline.platform in platforms and entry.note.suite == suite.name
    ]
    entries.sort(key=lambda entry: str(entry["note"]["when"] or ""))
    if args.json:
        print(json.dumps({"log": entries}, indent=2))
        return int(ExitCode.PASS)
    if not entries:
        say("no decision yet: approve the records of a round with `plumbline baseline accept SUITE`")
    for entry in entries:
        note = entry["note"]
        when = str(note["when"] or "")[:16].replace("T", " ")
        extra = " (forced)" if note["forced"] else " (anchor)" if note["as_anchor"] else ""
        about = f"{entry['platform']}  {entry['workload']}  {entry['record_id']}"
        say(f"{when}  {entry['action']}{extra}  {about}  {note['who']}  {note['why']}".rstrip())
    return int(ExitCode.PASS)


def _print(baselines: Sequence[Baseline]) -> None:
    if not baselines:
        say("no baseline yet: approve the records of a round with `plumbline baseline accept SUITE`")
    for baseline in baselines:
        say(
            f"{baseline.platform}  {baseline.workload}  spec {baseline.spec_sha256[:12]}  "
            f"{len(baseline.records)} accepted"
        )
        for entry in baseline.records:
            speed = "" if entry.samples_per_second is None else f"  {entry.samples_per_second:.4g} samples/s"
            accuracy = "" if entry.accuracy is None else f"  accuracy {entry.accuracy:.4f}"
            mark = "  ← current" if entry.record_id == baseline.current else ""
            say(f"  {entry.started_at:%Y-%m-%d %H:%M}  {entry.record_id}{accuracy}{speed}{mark}")
        if baseline.noise.relative_sd is not None:
            say(f"  noise floor {baseline.noise.relative_sd:.2%} of the throughput over {baseline.noise.runs} runs")
