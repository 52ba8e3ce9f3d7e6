"""`plumbline export SUITE --to FORMAT`: write all nights of a suite for another tool.

`parquet` is one table of every metric, for DuckDB, Polars or pandas. `prometheus` is the state after the last round, in
the text format that node_exporter's textfile collector and Pushgateway read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from plumbline.central import CentralStore
from plumbline.cli.nights import read_all_series
from plumbline.cli.options import check_file
from plumbline.errors import ConfigurationError, ExitCode
from plumbline.report.exports import nights_table, prometheus_text
from plumbline.schema.suite import read_suite
from plumbline.stores import open_store


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser("export", help="write all nights for another tool", description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    parser.add_argument("--to", choices=("parquet", "prometheus"), required=True, help="the format")
    parser.add_argument("--out", type=Path, help="output file, replaced at once (prometheus: default stdout)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the nights, and print where they are."""
    if args.out is None and (args.to == "parquet" or args.json):
        raise ConfigurationError("is missing", where="export", key="--out", hint="name a file")
    if args.out:
        check_file(args.out)
    suite = read_suite(args.suite)
    series = list(read_all_series(CentralStore(open_store(suite.store)), suite, list(suite.platforms)).values())
    if args.out is None:
        sys.stdout.write(prometheus_text(series))
        return int(ExitCode.PASS)
    part = args.out.with_name(f".{args.out.name}.part")  # a collector must never read half a file
    if args.to == "parquet":
        table = nights_table(series)
        pq.write_table(table, part, compression="zstd")
        rows = table.num_rows
    else:
        part.write_text(prometheus_text(series), encoding="utf-8")
        rows = sum(bool(file.judged) for file in series)
    part.replace(args.out)
    print(
        json.dumps({"suite": suite.name, "to": args.to, "out": str(args.out), "rows": rows}) if args.json else args.out
    )
    return int(ExitCode.PASS)
