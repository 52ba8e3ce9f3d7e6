"""`plumbline doctor SUITE`: find what would lose a night before it does, and name the mend."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from plumbline.doctor import Ailment, examine_stores, worst_code
from plumbline.schema.suite import read_suite

__all__ = ["register", "run"]


def register(subparsers: Any) -> None:
    """Add `doctor`."""
    parser = subparsers.add_parser(
        "doctor", help="check reach, credentials, versions, clock, disk", description=__doc__
    )
    parser.add_argument("suite", type=Path)
    parser.add_argument("--state", type=Path, default=Path(".plumbline"), help="folder of all state (%(default)s)")
    parser.add_argument("--workers", action="store_true", help="ask every platform's worker as well (dispatches)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine; 0 if nothing is wrong, 2 for what a person configured wrongly, 3 for what does not answer."""
    suite = read_suite(args.suite)
    found = list(examine_stores(suite, args.state))
    from tasks.examining import examine_prefect, examine_workers

    of_prefect, online = examine_prefect(suite)
    found += of_prefect
    if args.workers and online:
        longest = max(suite.platforms[name].start_seconds for name in online)
        print(f"asking the workers of {', '.join(online)}, for up to {longest:g} s ...", file=sys.stderr)
        found += examine_workers(suite, online)
    if args.json:
        print(json.dumps({"checks": [one.to_json() for one in found]}))
    else:
        _print(found)
    return int(worst_code(found))


def _print(found: list[Ailment]) -> None:
    for one in found:
        sign = "ok  " if one.well else "FAIL"
        mend = f"\n     mend: {one.mend}" if one.mend and not one.well else ""
        print(f"{sign} {one.where}: {one.what}{mend}")
    ill = sum(not one.well for one in found)
    print(f"{ill} of {len(found)} checks found something" if ill else f"all {len(found)} checks are well")
