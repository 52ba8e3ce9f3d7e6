"""`plumbline alert SUITE`: send a test alert, or check for a missed round."""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.alerts import probe_message
from plumbline.cli.options import say
from plumbline.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite, read_suite


def register(subparsers: Any) -> None:
    """Add `alert`."""
    parser = subparsers.add_parser(
        "alert", help="send a test alert, or alert about a missed round", description=__doc__
    )
    parser.add_argument("suite", type=Path, help="the suite file")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--test", action="store_true", help="send a test message through every block")
    what.add_argument("--check", action="store_true", help="alert about a missed round, and send pending alerts")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Send alerts; return 3 if a delivery failed."""
    suite = read_suite(args.suite)
    if not suite.alerts:
        raise ConfigurationError("has no recipient", where=str(args.suite), key="alerts", hint="add [[alerts]]")
    sent, failed = _test(suite) if args.test else _check(suite)
    if args.json:
        print(json.dumps({"told": sent, "failed": failed}))
    else:
        for line in sent or ["no alert to send"]:
            say(line)
        for line in failed:
            say(f"plumbline: {line}", to_stderr=True)
    return int(ExitCode.INCONCLUSIVE if failed else ExitCode.PASS)


def _test(suite: Suite) -> tuple[list[str], list[str]]:
    from plumbline.tasks.prefect_client.notifications import Blocks, send

    subject, body = probe_message(suite.name, datetime.now(UTC))
    known = Blocks(suite, os.environ)
    outcomes = {block: send(block, subject, body, known) for block in _blocks(suite)}
    sent = [f"{block}: delivered" for block, why in outcomes.items() if not why]
    failed = [f"{block}: {why}" for block, why in outcomes.items() if why]
    return sent, [*(str(error) for error in known.errors), *failed]


def _blocks(suite: Suite) -> list[str]:
    return list(dict.fromkeys(alert.block for alert in suite.alerts))


def _check(suite: Suite) -> tuple[list[str], list[str]]:
    from plumbline.tasks.watch import check_missed_rounds, recover_rounds

    unfinished = recover_rounds(suite)
    missed, failed = check_missed_rounds(suite)
    return [missed] if missed else [], [*unfinished, *failed]
