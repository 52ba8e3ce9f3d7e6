"""`plumbline doctor SUITE`: find problems before a nightly round fails, with a hint for each."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from plumbline.cli.options import say, summary
from plumbline.flows.commands import alert
from plumbline.local.stack import is_local
from plumbline.night.doctor import CheckResult, examine_conformance, examine_recipients, examine_stores, worst_code
from plumbline.night.doctor.stores import examine_disk
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import read_suite


def register(subparsers: Any) -> None:
    """Add the command `doctor` to the parser."""
    parser = subparsers.add_parser("doctor", help=summary(__doc__), description=__doc__)
    parser.add_argument("suite", type=Path, nargs="?", help="the suite file")
    parser.add_argument("--store", metavar="URL", help="test a bucket or folder against the store contract instead")
    parser.add_argument("--state", type=Path, default=Path(".plumbline"), help="folder for all state (%(default)s)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--workers", action="store_true", help="also run a check on a worker of every work pool")
    which.add_argument("--alerts", action="store_true", help="only send a test message to every recipient")
    which.add_argument("--missed", action="store_true", help="only alert about a missed round, and send pending alerts")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the checks; return 0 (passed), 2 (configuration error) or 3 (unreachable)."""
    if (args.suite is None) == (args.store is None):
        raise ConfigurationError("use either SUITE or --store URL", where="doctor")
    if args.store is not None:
        return _report(args, list(examine_conformance(args.store)))
    suite = read_suite(args.suite).with_absolute_urls(Path.cwd())
    if args.alerts or args.missed:
        return alert.run(args, suite)
    from prefect.settings import PREFECT_API_URL

    if is_local(suite) and not PREFECT_API_URL.value():
        text = "its server and stores run only while `plumbline run` does: the round itself checks them"
        results = [examine_disk("this machine's disk", args.state), *examine_recipients(suite)]
        return _report(args, [*results, CheckResult(where=suite.name, what=text, well=True)])
    results = [*examine_stores(suite, args.state), *examine_recipients(suite)]
    from plumbline.tasks.doctor import check_server
    from plumbline.tasks.doctor_workers import check_workers

    of_server, pools = check_server(suite)
    results += of_server
    if args.workers and pools:
        print(f"asking the workers of {', '.join(pools)} ...", file=sys.stderr)
        results += check_workers(suite, pools)
    return _report(args, results)


def _report(args: argparse.Namespace, results: list[CheckResult]) -> int:
    if args.json:
        print(json.dumps({"checks": [result.to_json() for result in results]}))
    else:
        _print(results)
    return int(worst_code(results))


def _print(results: list[CheckResult]) -> None:
    for result in results:
        sign = "ok  " if result.well else "FAIL"
        say(f"{sign} {result.where}: {result.what}")
        if result.hint and not result.well:
            say(f"     hint: {result.hint}")
    num_failed = sum(not result.well for result in results)
    print(f"{num_failed} of {len(results)} checks failed" if num_failed else f"all {len(results)} checks passed")
