"""`plumbline deploy SUITE`: make a Prefect server what the suite says; again and again, with the same outcome."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.deploying import Change, desired, lines
from plumbline.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite, read_suite

__all__ = ["register", "run"]

_API_SECONDS = 10.0


def register(subparsers: Any) -> None:
    """Add `deploy`."""
    parser = subparsers.add_parser("deploy", help="create or update what a suite needs on Prefect", description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--prune", action="store_true", help="delete deployments and automations that left the suite")
    parser.add_argument("--publish", action="store_true", help="build and publish data, weights and recipes as well")
    parser.add_argument("--controllers", default="plumbline", help="work pool of the controllers (%(default)s)")
    parser.add_argument("--state", type=Path, default=Path(".plumbline"), help="folder of what is built (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, and unless it is a dry run, apply."""
    suite = read_suite(args.suite)
    from prefect import get_client

    from tasks import deploying
    from tasks.addresses import Blocks
    from tasks.answering import answering, wait_for_api
    from tasks.watching import due_times

    if suite.schedule is not None:
        due_times(suite.schedule, datetime.now(UTC), 1, where=str(args.suite))
    blocks = Blocks(suite, os.environ)
    # A worker opens the suite by this name, from the folder of the checkout that it runs in.
    name = os.path.relpath(args.suite)
    wanted = desired(suite, name, controllers=args.controllers, addresses=blocks.fingerprints)
    wait_for_api(_API_SECONDS)
    with answering(), get_client(sync_client=True) as client:
        changes = deploying.plan(client, suite.name, wanted)
        _check_blocks(args.suite, suite, changes, blocks.fingerprints)
        if not args.dry_run:
            deploying.apply(client, changes, blocks)
            if args.prune:
                deploying.prune(client, changes)
    if args.publish and not args.dry_run:
        _publish(args)
    _print(args, changes)
    return int(ExitCode.PASS)


def _check_blocks(path: Path, suite: Suite, changes: Sequence[Change], known: Collection[str]) -> None:
    """Every block of the alerts is there, or can be made."""
    for change in changes:
        if change.item.kind == "block" and change.verb == "create" and change.item.name not in known:
            variables = [one.address_from for one in suite.alerts if one.block == change.item.name and one.address_from]
            mend = f"set {variables[0]} to its address" if variables else "make it in Prefect, or add address_from"
            raise ConfigurationError(
                f"names the block {change.item.name}, which is not on the server",
                where=str(path), key="alerts", mend=f"{mend}: docs/OPERATIONS.md",
            )  # fmt: skip


def _publish(args: argparse.Namespace) -> None:
    from plumbline.central import CentralStore
    from plumbline.prepare import prepare
    from plumbline.rounds.recipes import keep_recipes
    from plumbline.stores import open_store

    suite = read_suite(args.suite)
    specs = prepare(suite, args.state / "build", lambda line: print(line, file=sys.stderr))
    keep_recipes(CentralStore(open_store(suite.store)), suite, specs)


def _print(args: argparse.Namespace, changes: Sequence[Change]) -> None:
    if args.json:
        told = [
            {"verb": one.verb, "kind": one.item.kind, "name": one.item.name, "fields": one.fields} for one in changes
        ]
        print(json.dumps({"dry_run": args.dry_run, "changes": told}))
        return
    for line in lines(changes):
        print(line)
    count = sum(one.verb in ("create", "change") for one in changes)
    print(f"{count} to do" if args.dry_run else f"{count} done")
