"""`plumbline import DIR`: copy a record made elsewhere into the central store."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from plumbline.central import CentralStore
from plumbline.errors import ConfigurationError, ExitCode
from plumbline.records import load_record
from plumbline.schema.suite import read_suite
from plumbline.stores import open_store

__all__ = ["register", "run"]


def register(subparsers: Any) -> None:
    """Add `import`."""
    parser = subparsers.add_parser("import", help="import a record made elsewhere", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder that `plumbline train` wrote")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--suite", type=Path, help="the suite whose store receives the record")
    where.add_argument("--store", metavar="URL", help="the central store")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Validate the record with all its parts, and store it."""
    suite = read_suite(args.suite) if args.suite else None
    loaded = load_record(args.folder)
    record = loaded.record
    if suite is not None and record.platform not in suite.platforms:
        hint = f"train with --platform set to one of {', '.join(suite.platforms)}, or use --store"
        raise ConfigurationError(
            f"{record.platform!r} is not a platform of the suite", where=str(args.folder), hint=hint
        )
    loaded.read_parts()
    store = suite.store if suite else args.store
    central = CentralStore(open_store(store))
    known = central.has_record(record.record_id)
    central.put_record(args.folder)
    answer = {
        "record": record.record_id, "platform": record.platform, "workload": record.spec.workload,
        "spec": record.spec_sha256, "status": record.exit.status, "store": store, "new": not known,
    }  # fmt: skip
    if args.json:
        print(json.dumps(answer))
    else:
        text = "was there already" if known else "is in the store"
        print(f"{record.record_id} ({record.platform}, {record.spec.workload}, {record.exit.status}) {text}: {store}")
    return int(ExitCode.PASS)
