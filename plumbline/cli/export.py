"""`plumbline store export SUITE --to FORMAT`: write all nights of a suite for another tool.

`parquet` is one table of every metric, for DuckDB, Polars or pandas. `prometheus` is the state after the last round, in
the text format that node_exporter's textfile collector and Pushgateway read. `mlflow` is a run per training on a
tracking server, `tensorboard` a folder of event files. Every export may be repeated, and writes no night twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from plumbline.cli.exchange.exports import FORMATS, Nights
from plumbline.cli.nights import open_central, read_all_series
from plumbline.cli.options import at_least, check_file, check_folder
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import read_suite
from plumbline.schema.variables import variable


def add(commands: Any) -> None:
    """Add the command `store export`."""
    parser = commands.add_parser("export", help="write all nights for another tool", description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    about = "; ".join(f"{name}: {format_.about}" for name, format_ in FORMATS.items())
    parser.add_argument("--to", choices=tuple(FORMATS), required=True, help=f"the format ({about})")
    parser.add_argument(
        "--out",
        metavar="FILE",
        default="",
        help="output file, replaced at once (prometheus: default stdout); tensorboard: a folder; mlflow: the address "
        "of a tracking server or a database (default: $MLFLOW_TRACKING_URI)",
    )
    parser.add_argument("--last", type=int, metavar="N", help="only the last N nights of each platform (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the nights, and print the output's location."""
    if args.last is not None:
        at_least("--last", args.last, 1)
    format_ = FORMATS[args.to]
    out = args.out or _default(format_.out)
    if not out or (out == "-" and args.json):
        what = {"file": "a file", "folder": "a folder", "address": "a tracking server, or set MLFLOW_TRACKING_URI"}
        raise ConfigurationError("is missing", where="store export", key="--out", hint=f"name {what[format_.target]}")
    if format_.target == "file" and out != "-":
        check_file(Path(out))
    if format_.target == "folder":
        check_folder(Path(out))
    suite = read_suite(args.suite)
    central = open_central(suite.store)
    series = list(read_all_series(central, suite, list(suite.platforms)).values())
    rows = format_.write(Nights(suite.name, central, series, args.last), out)
    if args.json:
        print(json.dumps({"suite": suite.name, "to": args.to, "out": out, "rows": rows}))
    elif out != "-":
        print(out)
    return int(ExitCode.PASS)


def _default(out: str) -> str:
    return variable(out.removeprefix("$")) if out.startswith("$") else out
