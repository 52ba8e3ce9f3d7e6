"""`plumbline explain CODE`: print the meaning of a cause or a verdict, its evidence and the next action."""

from __future__ import annotations

import argparse
import json
from typing import Any

from plumbline.cli.options import summary
from plumbline.report.sentences import explanations
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite_file import did_you_mean


def register(subparsers: Any) -> None:
    """Add the command `explain` to the parser."""
    parser = subparsers.add_parser("explain", help=summary(__doc__), description=__doc__)
    parser.add_argument("code", nargs="?", default="", help="a code, such as data.labels; without it, list the codes")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one explanation, or the list of codes."""
    known = explanations()
    if args.code and args.code not in known:
        hint = did_you_mean(args.code, known) or "`plumbline explain` lists all codes"
        raise ConfigurationError("unknown code", where=args.code, hint=hint)
    if args.json:
        print(json.dumps({args.code: known[args.code]} if args.code else known, indent=2))
    elif args.code:
        entry = known[args.code]
        print(f"{args.code}\n\n{entry['meaning']}\nEvidence: {entry['evidence']}\nDo: {entry['do']}")
    else:
        print("\n".join(f"{code:20} {entry['meaning'].partition(':')[0].rstrip('.')}" for code, entry in known.items()))
    return int(ExitCode.PASS)
