"""`plumbline compare REFERENCE [CANDIDATE]`: judge two records, or one by itself: verdict, divergence, cause."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from plumbline.cli.options import check_file, summary


def register(subparsers: Any) -> None:
    """Add the command `compare` to the parser."""
    parser = subparsers.add_parser("compare", help=summary(__doc__), description=__doc__)
    parser.add_argument("reference", help="the reference record: folder, STORE-URL/records/ID, or with --suite an id")
    parser.add_argument(
        "candidate", nargs="?", help="the record to judge: likewise; without it, one record is judged by itself"
    )
    parser.add_argument("--suite", type=Path, help="a suite file whose [gates] are used, and whose store has the ids")
    parser.add_argument(
        "--throughput", action="store_true", help="the reference is this platform's baseline: judge throughput too"
    )
    parser.add_argument("--rerun", help="a second run of the candidate, to confirm a drop")
    parser.add_argument(
        "--data",
        metavar="URL",
        help="the reference's data store, to name rows by file, line and text (default: the suite's)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the judgement as a page, with charts")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare two records, print the judgement, and return its exit code."""
    # What judges and draws is imported here: `--help` needs none of it.
    from plumbline.cli.two_records import judged
    from plumbline.data.staging.scratch import scratch_folder
    from plumbline.report.sentences import spoken
    from plumbline.schema.suite import read_suite
    from plumbline.schema.verdict import exit_code

    suite = read_suite(args.suite) if args.suite else None
    if args.html:
        check_file(args.html, option="--html")
    with scratch_folder() as folder:
        pair = judged(args, suite, folder)
        if args.html:
            from plumbline.report.html import compare_page

            page = compare_page(pair.judgement, pair.reference, pair.candidate)
            args.html.write_text(page, encoding="utf-8")
        if args.json:
            print(json.dumps(spoken(pair.judgement.to_json()), indent=2))
        else:
            from plumbline.report.terminal import comparison_table

            text = comparison_table(pair.judgement, pair.reference, pair.candidate, colour=sys.stdout.isatty())
            print(text, end="")
    return int(exit_code(pair.judgement.verdict))
