"""`plumbline deploy SUITE`: create or update the suite's objects on a Prefect server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.cli.options import summary
from plumbline.night.deployment import CONTROLLERS_POOL, Item, PlanItem, desired, desired_at, lines
from plumbline.night.doctor.stores import check_destinations
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite, read_suite

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_API_SECONDS = 10.0
_PLAN_SECONDS = 120.0
"""Time for all requests of a plan to a platform's API."""
_KINDS = ("work-pool", "block", "deployment", "automation")


def register(subparsers: Any) -> None:
    """Add the command `deploy` to the parser."""
    parser = subparsers.add_parser("deploy", help=summary(__doc__), description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--prune", action="store_true", help="delete deployments that are no longer in the suite")
    parser.add_argument("--publish", action="store_true", help="also build and publish data, weights and specs")
    parser.add_argument("--only", choices=_KINDS, action="append", help="only this kind of object; may be repeated")
    parser.add_argument("--controllers", default=CONTROLLERS_POOL, help="work pool of the controllers (%(default)s)")
    parser.add_argument("--state", type=Path, default=Path(".plumbline"), help="folder for build outputs (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan the changes to the server, and apply them unless `--dry-run`."""
    suite = read_suite(args.suite).with_absolute_urls(Path.cwd())
    if args.publish and not args.dry_run:
        check_destinations(suite)
    changes = _deploy(args, suite)
    if args.publish and not args.dry_run:
        publish_data(suite, args.state, lambda line: print(line, file=sys.stderr))
    _print(args, changes)
    return int(ExitCode.PASS)


def _deploy(args: argparse.Namespace, suite: Suite) -> Sequence[PlanItem]:
    from plumbline.tasks.prefect_client import deployments
    from plumbline.tasks.prefect_client.api import check_schedule, server_errors, wait_for_api
    from plumbline.tasks.prefect_client.notifications import Blocks
    from plumbline.tasks.prefect_client.platform_apis import open_apis, platform_errors

    if suite.schedule is not None:
        check_schedule(suite.schedule, where=str(args.suite))
    blocks = Blocks(suite, os.environ)
    if blocks.errors:
        raise blocks.errors[0]
    wanted = _chosen(args, desired(suite, controllers=args.controllers, addresses=blocks.fingerprints))
    wait_for_api(_API_SECONDS)
    with server_errors(), open_apis(suite) as apis:
        plans = {"": deployments.plan(apis.own, suite.name, wanted)}
        for name in deployments.other_schedules(apis.own, suite):
            hint = f"if it was renamed to {suite.name}: `prefect deployment delete {name}`"
            print(f"plumbline: {name}: is scheduled too, with the same store (hint: {hint})", file=sys.stderr)
        _check_blocks(args.suite, suite, plans[""], blocks.fingerprints)
        for api, name, client in apis.foreign(suite):
            items = _chosen(args, desired_at(suite, api))
            with platform_errors(suite, name):
                plans[name] = apis.ask(client, partial(_plan_at, suite=suite.name, items=items), _PLAN_SECONDS)
        if args.only:
            plans = {
                name: tuple(change for change in plan if change.verb not in ("delete", "extra"))
                for name, plan in plans.items()
            }
        if not args.dry_run:
            for name, changes in plans.items():
                with platform_errors(suite, name):
                    deployments.apply(apis.of(name), changes, blocks)
                    if args.prune:
                        deployments.prune(apis.of(name), changes)
    return [change for changes in plans.values() for change in changes]


def _plan_at(client: SyncPrefectClient, suite: str, items: list[Item]) -> tuple[PlanItem, ...]:
    from plumbline.tasks.prefect_client import deployments
    from plumbline.tasks.prefect_client.api import check_api

    check_api(client)
    return deployments.plan(client, suite, items)


def _chosen(args: argparse.Namespace, wanted: Sequence[Item]) -> list[Item]:
    """Return the items of the requested kinds; a deployment includes its automation."""
    kinds = args.only or _KINDS
    owned = [item for item in wanted if item.kind == "automation" and item.fields["action"]["type"] == "run-deployment"]
    of_kind = [item for item in wanted if item.kind in kinds]
    return [item for item in of_kind if "deployment" in kinds or item not in owned]


def _check_blocks(path: Path, suite: Suite, changes: Sequence[PlanItem], known: Collection[str]) -> None:
    """Raise for a missing alert block that cannot be created."""
    for change in changes:
        if change.item.kind == "block" and change.verb == "create" and change.item.name not in known:
            variables = [
                alert.address_from for alert in suite.alerts if alert.block == change.item.name and alert.address_from
            ]
            hint = f"set {variables[0]} to its address" if variables else "create it in Prefect, or add address_from"
            raise ConfigurationError(
                f"the block {change.item.name} does not exist on the server",
                where=str(path), key="alerts", hint=f"{hint}: docs/how-to/alerts.md",
            )  # fmt: skip


def publish_data(suite: Suite, state: Path, say: Any) -> None:
    """Build and publish data and weights, and store each workload's spec."""
    from plumbline.data.stores import open_store
    from plumbline.night.central import CentralStore
    from plumbline.night.prepare import prepare
    from plumbline.night.rounds.documents import write_specs

    write_specs(CentralStore(open_store(suite.store)), suite, prepare(suite, state / "build", say))


def _print(args: argparse.Namespace, changes: Sequence[PlanItem]) -> None:
    if args.json:
        items = [
            {"verb": change.verb, "kind": change.item.kind, "name": change.item.name, "fields": change.fields}
            for change in changes
        ]
        print(json.dumps({"dry_run": args.dry_run, "changes": items}))
        return
    for line in lines(changes):
        print(line)
    count = sum(change.verb in ("create", "change", "delete") for change in changes)
    print(f"{count} to do" if args.dry_run else f"{count} done")
