"""`plumbline store prune SUITE`: remove old rounds from the central store. Accepted and drifted rounds stay.

Without --apply the command only shows what it would remove. Series, baselines and anchors always stay.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.cli.nights import open_central
from plumbline.cli.options import say
from plumbline.night.retention import Sweep, plan_sweep, remove
from plumbline.night.rounds.site import connect_reports, write_site
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite, read_suite

_MIB = 1 << 20


def add(commands: Any) -> None:
    """Add the command `store prune`."""
    parser = commands.add_parser("prune", help="remove old rounds from the store", description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    parser.add_argument(
        "--keep-days", type=float, default=90.0, metavar="N", help="keep the rounds of the last N days (default: 90)"
    )
    parser.add_argument("--apply", action="store_true", help="remove the rounds; without this option, only show them")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List removable rounds, and why others stay; with --apply, remove them."""
    if not args.keep_days >= 1:
        raise ConfigurationError(f"{args.keep_days:g} is less than 1", where="--keep-days")
    suite = read_suite(args.suite)
    central = open_central(suite.store)
    plan = plan_sweep(central, suite, now=datetime.now(UTC), keep_days=args.keep_days)
    if args.apply:
        remove(central, plan)
        write_site(central, suite)
        connect_reports(central, suite.name, plan.choice.gone, suite.report_url)
    if args.json:
        print(json.dumps(_document(suite, plan, applied=args.apply), indent=2))
    else:
        _print(plan, applied=args.apply)
    return int(ExitCode.PASS)


def _document(suite: Suite, plan: Sweep, *, applied: bool) -> dict[str, object]:
    return {
        "suite": suite.name,
        "applied": applied,
        "rounds": list(plan.choice.gone),
        "records": list(plan.records),
        "artifacts": len(plan.artifacts),
        "bytes": plan.num_bytes,
        "kept": plan.choice.kept,
        "unread_records": list(plan.unread),
        "open_rounds": list(plan.open_rounds),
    }


def _print(plan: Sweep, *, applied: bool) -> None:
    for name in plan.choice.gone:
        say(f"{'removed' if applied else 'would remove'} {name}")
    reasons = Counter(plan.choice.kept.values())
    if reasons:
        print("kept: " + ", ".join(f"{count} {why}" for why, count in reasons.most_common()))
    if plan.unread:
        print(f"{len(plan.unread)} records cannot be read and may name any artifact: no artifact is removed")
    size = f"{plan.num_bytes / _MIB:.1f} MiB"
    what = f"{len(plan.choice.gone)} rounds, {len(plan.records)} records, {len(plan.artifacts)} artifacts, {size}"
    print(f"{'removed' if applied else 'would remove'}: {what}{'' if applied else ' (--apply removes it)'}")
