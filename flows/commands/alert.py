"""`plumbline doctor SUITE --alerts` and `--missed`: send a test alert, or alert about a missed round."""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime

from plumbline.cli.options import say
from plumbline.night.alerts import probe_message
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite


def run(args: argparse.Namespace, suite: Suite) -> int:
    """Send alerts; return 3 if a delivery failed."""
    if not suite.alerts:
        raise ConfigurationError("has no recipient", where=str(args.suite), key="alerts", hint="add [[alerts]]")
    sent, failed = _test(suite) if args.alerts else _check(suite)
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
    outcomes = {
        block: send(block, subject, body, known) for block in dict.fromkeys(alert.block for alert in suite.alerts)
    }
    sent = [f"{block}: delivered" for block, why in outcomes.items() if not why]
    failed = [f"{block}: {why}" for block, why in outcomes.items() if why]
    return sent, [*(str(error) for error in known.errors), *failed]


def _check(suite: Suite) -> tuple[list[str], list[str]]:
    from plumbline.tasks.watch import check_missed_rounds, recover_rounds

    unfinished = recover_rounds(suite)
    missed, failed = check_missed_rounds(suite)
    return [missed] if missed else [], [*unfinished, *failed]
