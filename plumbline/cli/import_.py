"""`plumbline store import DIR`: copy a record made elsewhere into the central store.

With a suite the record also becomes a round of its own, `import-RECORD`, judged against its platform's baseline, which
`report` and `baseline accept` read as any other.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from plumbline.cli.options import say
from plumbline.cli.two_records import read_folder
from plumbline.data.staging.scratch import scratch_folder
from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.judge import judge_round
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.rounds.outcome import join
from plumbline.records import LoadedRecord
from plumbline.schema.digest import bounded_name
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import RoundVerdict


def add(commands: Any) -> None:
    """Add the command `store import`."""
    parser = commands.add_parser("import", help="import a record made elsewhere", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder that `plumbline train` wrote")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--suite", type=Path, help="the suite whose store receives the record")
    where.add_argument("--store", metavar="URL", help="the central store")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Validate and store the record with all its parts."""
    suite = read_suite(args.suite) if args.suite else None
    loaded = read_folder(args.folder)
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
    central.put_record(loaded)
    judged = _round_of(suite, loaded, central) if suite else None
    answer = {
        "record": record.record_id, "platform": record.platform, "workload": record.spec.workload,
        "spec": record.spec_sha256, "status": record.exit.status, "store": store, "new": not known,
        **({"round": judged.round, "verdict": judged.verdict} if judged else {}),
    }  # fmt: skip
    if args.json:
        print(json.dumps(answer))
    else:
        text = "was there already" if known else "is in the store"
        about = f"{record.record_id} ({record.platform}, {record.spec.workload}, {record.exit.status})"
        say(f"{about} {text}: {store}")
        if judged:
            say(f"round {judged.round}: {judged.verdict}")
            say(f"next: plumbline report {judged.round} --suite {args.suite}")
            if judged.verdict == "pass":
                say(f"next: plumbline baseline accept {args.suite} --round {judged.round}")
    return int(ExitCode.PASS)


def _round_of(suite: Suite, loaded: LoadedRecord, central: CentralStore) -> RoundVerdict:
    """Judge an imported record in its own round, one time."""
    record = loaded.record
    name = bounded_name(f"import-{record.record_id}")
    with suppress(ObjectMissingError):
        return central.get_round(suite.name, name)
    platform = suite.platforms[record.platform]
    drop = platform.throughput_drop
    gates = suite.gates if drop is None else suite.gates.replace(throughput_drop=drop)
    with scratch_folder() as folder:
        baseline = BaselineBook(central).read(record.spec_sha256, record.platform)
        before = {}
        if baseline is not None and baseline.current is not None:
            before[record.platform] = central.get_record(baseline.current, folder)
        result = judge_round({record.platform: loaded}, record.platform, before, gates)[record.platform]
    result = join({record.spec.workload: result})
    verdict = RoundVerdict(
        round=name, suite=suite.name, verdict=result.verdict, platforms={record.platform: result},
        notes=("an imported record, compared with its platform's baseline alone",),
    )  # fmt: skip
    central.put_round(verdict)
    return verdict
