"""`plumbline report ROUND`: render a stored round again."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plumbline.cli.nights import latest_round, read_round, read_rounds
from plumbline.cli.options import check_file, program, say, summary
from plumbline.data.staging.scratch import scratch_folder
from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.night.central import CentralStore
from plumbline.night.rounds.plan import night_of
from plumbline.night.rounds.reporting import earlier_records, keep_report, link_to, record_links, report_key
from plumbline.night.rounds.site import connect_reports
from plumbline.records import LoadedRecord
from plumbline.report.history import points_of
from plumbline.report.html import render_page
from plumbline.report.junit import junit_xml
from plumbline.report.markdown import step_summary
from plumbline.report.terminal import verdict_table
from plumbline.report.view import build_view
from plumbline.schema.errors import ConfigurationError, ExitCode, InvalidInputError
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import RoundVerdict

_LATEST = "latest"
_NIGHTS = 90


def register(subparsers: Any) -> None:
    """Add the command `report` to the parser."""
    parser = subparsers.add_parser("report", help=summary(__doc__), description=__doc__)
    parser.add_argument("round", help="the round's id, or `latest`")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--suite", type=Path, help="the suite whose store contains the round")
    where.add_argument("--store", metavar="URL", help="the central store")
    parser.add_argument(
        "--format",
        choices=("html", "text", "junit", "summary"),
        default="html",
        help="output format (default: %(default)s)",
    )
    parser.add_argument(
        "--since", metavar="ROUND", default="", help="list what changed since this round (default: the night before)"
    )
    parser.add_argument("--out", type=Path, help="output file (default: html into the store, other formats on stdout)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Render the report, then write or print it."""
    if args.out:
        check_file(args.out)
    suite = read_suite(args.suite) if args.suite else None
    central = CentralStore(open_store(suite.store if suite else args.store))
    verdict = _round(central, args.round, suite)
    answer = {"round": verdict.round, "verdict": verdict.verdict}
    if args.since:
        read_round(central, verdict.suite, args.since, "--since")
    if args.format == "html":
        answer["report"] = _html(central, verdict, suite, args)
    else:
        text = _text(args, verdict)
        answer["report"] = str(args.out or "")
        if args.out:
            args.out.write_text(text, encoding="utf-8")
        elif args.json:
            answer["text"] = text
        else:
            sys.stdout.write(text)
            return int(ExitCode.PASS)
    print(json.dumps(answer) if args.json else answer["report"])
    return int(ExitCode.PASS)


def _round(central: CentralStore, wanted: str, suite: Suite | None) -> RoundVerdict:
    if wanted != _LATEST:
        return read_round(central, suite.name if suite else None, wanted, "ROUND")
    newest = latest_round(central, suite.name if suite else None)
    if newest is None:
        raise ConfigurationError("no round exists yet", where=central.store.url, hint="plumbline run SUITE")
    return newest


def _text(args: argparse.Namespace, verdict: RoundVerdict) -> str:
    if args.format == "junit":
        return junit_xml(verdict)
    if args.format == "summary":
        return step_summary(verdict)
    colour = args.out is None and not args.json and sys.stdout.isatty()
    return verdict_table(verdict, colour=colour, suite_file=str(args.suite or ""), program=program())


def _html(central: CentralStore, verdict: RoundVerdict, suite: Suite | None, args: argparse.Namespace) -> str:
    out: Path | None = args.out
    site = suite.report_url if suite else ""
    with scratch_folder() as folder:
        records = _records(central, verdict, folder)
        loaded = [record for lot in records.values() for record in lot.values()]
        earlier = [past for past in read_rounds(central, verdict.suite, _NIGHTS) if past.round < verdict.round]
        view = build_view(
            verdict,
            records,
            history=points_of([(night_of(past.round), past) for past in [*earlier, verdict]]),
            reference=suite.reference if suite else _reference(verdict),
            baselines=_baselines(central, verdict, folder),
            records_base=_records_folder(central) if out else "../../../records",
            record_links=record_links(central, loaded, site),
            earlier=earlier_records(central, verdict.suite, verdict.platforms, verdict.round, args.since),
        )
        page = render_page(view)
    if out is None:
        keep_report(central, verdict, page)
        connect_reports(central, verdict.suite, [verdict.round], site)
        link = link_to(central, report_key(verdict), site)
        if link.note:
            say(f"plumbline: {link.note}", to_stderr=True)
        return link.url
    out.write_text(page, encoding="utf-8")
    return str(out)


def _records_folder(central: CentralStore) -> str:
    """Return the URI of the records folder of a `file://` store, else ""."""
    parts = urlsplit(central.store.url)
    return (Path(parts.netloc + parts.path) / "records").resolve().as_uri() if parts.scheme == "file" else ""


def _records(central: CentralStore, verdict: RoundVerdict, into: Path) -> dict[str, dict[str, LoadedRecord]]:
    """Return the round's own records, one per workload and platform."""
    records: dict[str, dict[str, LoadedRecord]] = {}
    for platform, result in verdict.platforms.items():
        for loaded in _loaded(central, result.records, into):
            lot = records.setdefault(loaded.record.spec.workload, {})
            known = len(lot[platform].record.spec.parts) if platform in lot else -1
            if loaded.record.experiment is None and len(loaded.record.spec.parts) > known:
                lot[platform] = loaded
    return records


def _baselines(central: CentralStore, verdict: RoundVerdict, into: Path) -> dict[str, dict[str, LoadedRecord]]:
    """Return the baselines that the round was compared with at the time."""
    records: dict[str, dict[str, LoadedRecord]] = {}
    for platform, result in verdict.platforms.items():
        against = (finding.against.partition(" ") for finding in result.findings)
        for loaded in _loaded(central, dict.fromkeys(name for kind, _, name in against if kind == "baseline"), into):
            records.setdefault(loaded.record.spec.workload, {})[platform] = loaded
    return records


def _loaded(central: CentralStore, names: Iterable[str], into: Path) -> Iterator[LoadedRecord]:
    """Load these records; report and skip missing or damaged ones."""
    for name in names:
        try:
            yield central.get_record(name, into)
        except ObjectMissingError:
            say(f"plumbline: the record {name} is no longer in the store", to_stderr=True)
        except InvalidInputError as error:
            say(f"plumbline: the record {name} is skipped: {error}", to_stderr=True)


def _reference(verdict: RoundVerdict) -> str:
    """Return the name of the reference platform, from the findings."""
    for result in verdict.platforms.values():
        for finding in result.findings:
            kind, _, name = finding.against.partition(" ")
            if kind == "platform" and name in verdict.platforms:
                return name
    return next(iter(verdict.platforms), "")
