"""The things that a suite wants on a Prefect server, each with the fields that are the suite's to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plumbline.schema.suite import Suite

__all__ = ["UPGRADE_EVENT", "Item", "Kind", "desired"]

Kind = Literal["work-pool", "block", "deployment", "automation"]

UPGRADE_EVENT = "plumbline.dependency.upgraded"
# Prefect fills these in when it happens.
_CRASHED = "[plumbline] {{ deployment.name }}: the controller of a round crashed"
_CRASHED_BODY = """{{ flow_run.name }} has no verdict: its process ended before its end.
{{ flow_run.state.message }}
run: {{ flow_run|ui_url }}"""
_WATCH_CRON = "*/10 * * * *"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing, by kind and name; `fields` are plain JSON values."""

    kind: Kind
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def desired(
    suite: Suite,
    suite_file: str,
    *,
    controllers: str,
    addresses: Mapping[str, str] | None = None,
) -> tuple[Item, ...]:
    """Everything, in the order in which it has to be made.

    `addresses` are fingerprints of the addresses of those blocks that we make.
    """
    return (
        *_pools(suite, controllers),
        *_blocks(suite, addresses or {}),
        *_deployments(suite, suite_file, controllers),
        *_automations(suite),
    )


def _blocks(suite: Suite, addresses: Mapping[str, str]) -> Iterator[Item]:
    for block in dict.fromkeys(alert.block for alert in suite.alerts):
        yield Item("block", block, {"address": addresses[block]} if block in addresses else {})


def _pools(suite: Suite, controllers: str) -> Iterator[Item]:
    pools = dict.fromkeys(platform.work_pool for platform in suite.platforms.values())
    for pool in pools:
        # The simplest "one training per device": one run of a pool at a time.
        yield Item("work-pool", pool, {"concurrency_limit": 1})
    if controllers not in pools:
        yield Item("work-pool", controllers, {})


def _deployments(suite: Suite, suite_file: str, controllers: str) -> Iterator[Item]:
    tags = ["plumbline", f"suite:{suite.name}"]
    for name, platform in suite.platforms.items():
        fields = {"entrypoint": "flows.training.training", "work_pool": platform.work_pool}
        yield _deployment(f"training/{suite.name}-{name}", tags=[*tags, f"platform:{name}"], **fields)
    schedule = suite.schedule
    yield _deployment(
        f"regression/{suite.name}",
        entrypoint="flows.regression.regression",
        work_pool=controllers,
        tags=[*tags, "plumbline-round"],
        parameters={"suite_file": suite_file},
        cron=schedule.cron if schedule else None,
        timezone=schedule.timezone if schedule else None,
    )
    if schedule and any("missed" in alert.on for alert in suite.alerts):
        yield _deployment(
            f"watch/{suite.name}",
            entrypoint="flows.watch.watch",
            work_pool=controllers,
            tags=tags,
            parameters={"suite_file": suite_file},
            cron=_WATCH_CRON,
            timezone="UTC",
        )


def _deployment(name: str, **fields: Any) -> Item:
    empty: dict[str, Any] = {"parameters": {}, "cron": None, "timezone": None, "job_variables": {}}
    return Item("deployment", name, {**empty, **fields})


def _automations(suite: Suite) -> Iterator[Item]:
    # In the words of Prefect's API; `deployment:` and `block:` stand for ids that only the server knows.
    yield Item(
        "automation",
        f"plumbline {suite.name}: round after an upgrade",
        {
            "expect": [UPGRADE_EVENT],
            "match": {},
            "action": {"type": "run-deployment", "deployment": f"regression/{suite.name}"},
        },
    )
    for block in dict.fromkeys(alert.block for alert in suite.alerts if "missed" in alert.on):
        yield Item(
            "automation",
            f"plumbline {suite.name}: controller crashed, to {block}",
            {
                "expect": ["prefect.flow-run.Crashed"],
                "match": {"deployment": f"regression/{suite.name}"},
                "action": {"type": "send-notification", "block": block, "subject": _CRASHED, "body": _CRASHED_BODY},
            },
        )
