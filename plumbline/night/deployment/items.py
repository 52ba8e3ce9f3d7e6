"""Work pools, blocks, deployments and automations of a suite. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plumbline.schema.suite import Platform, Suite

Kind = Literal["work-pool", "block", "deployment", "automation"]

REGRESSION, TRAINING, WATCH = "plumbline-regression", "plumbline-training", "plumbline-watch"
"""Names of the flows, which start with the product's name on a shared server."""
UPGRADE, GATE = "plumbline-upgrade", "plumbline-gate"
"""Names of the flows of an upgrade: the controller's, and that of each platform's worker."""
ROUND_TAG = "plumbline-round"
"""Tag of the runs that the watch continues: rounds and upgrades."""
UPGRADE_EVENT = "plumbline.dependency.upgraded"
RESUMED = "its process ended; the same round continues in a new process"
"""Message of the state of a crashed round that is started again, unless by a person."""
_LOCK_OF_EVENT = "{{ event.payload.lock | default({}, true) | tojson }}"
_PLATFORMS_OF_EVENT = "{{ event.payload.platforms | default([], true) | tojson }}"

CONTROLLERS_POOL = "plumbline"
"""Default work pool of rounds and watches."""
_DEFAULT_QUEUE = "default"
"""Name of the queue that Prefect makes in each pool."""
_WATCH_CRON = "*/3 * * * *"
_WATCH_TAG = "plumbline-watch"
_UNWATCHED_SECONDS = 1800
"""Seconds without a watch after which a person is told: twice the time for which Prefect holds an event back."""
_HEARTBEAT_SECONDS = 30
"""Minimum period in Prefect, in seconds."""
_SILENT_SECONDS = 4 * _HEARTBEAT_SECONDS
LOST = "Lost"
"""State name of a round that no process continues."""
_ENDS = ("Cancelled", "Completed", "Crashed", "Drift", "Failed", "Inconclusive", "Invalid", LOST, "Misconfigured")
"""Final state names of Plumbline's runs."""


@dataclass(frozen=True, slots=True)
class Item:
    """Object on a Prefect server: kind, name, and JSON values."""

    kind: Kind
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the suite decides: differences are changed."""
    initial: Mapping[str, Any] = field(default_factory=dict)
    """Fields set at creation, and left to people afterwards."""


def suite_tag(suite: str) -> str:
    """Return the Prefect tag of a suite's runs and deployments."""
    return f"suite:{suite}"


def job_variables(platform: Platform, image: str = "") -> dict[str, Any] | None:
    """Return the job variables of a platform's runs, optionally with another image. `None` for the work pool's own."""
    variables = dict(platform.job_variables)
    if image:
        variables["image"] = image
    if "image" in variables:
        # With this variable, the record names the image in which the trainer ran.
        variables["env"] = {**variables.get("env", {}), "PLUMBLINE_IMAGE": variables["image"]}
    # A pool whose template has no such variable ignores it.
    if platform.gpus > 1:
        variables["gpus"] = platform.gpus
    if platform.nodes > 1:
        variables["nodes"] = platform.nodes
    return variables or None


def training_deployment(suite: str, platform: str) -> str:
    """Return the name of a platform's training deployment in Prefect."""
    return f"{TRAINING}/{suite}-{platform}"


def gate_deployment(suite: str, platform: str) -> str:
    """Return the name of a platform's upgrade gate deployment."""
    return f"{GATE}/{suite}-{platform}"


def suite_parameters(suite: Suite) -> dict[str, Any]:
    """Return the flow parameters that contain the whole suite."""
    return {"suite": suite.model_dump(mode="json", exclude_defaults=True)}


def desired(suite: Suite, *, controllers: str, addresses: Mapping[str, str] | None = None) -> tuple[Item, ...]:
    """Return all objects needed on the controller's Prefect API, in creation order.

    `controllers` is the work pool of rounds and watches. `addresses` are fingerprints of the addresses of those blocks
    that `plumbline deploy` creates.
    """
    own = _platforms_at(suite, "")
    return (
        *_pools(own, controllers),
        *_blocks(suite, addresses or {}),
        *_trainings(suite, own),
        *_rounds(suite, controllers),
        *_automations(suite, controllers),
    )


def desired_at(suite: Suite, api: str) -> tuple[Item, ...]:
    """Return all objects needed on a platform's separate Prefect API."""
    platforms = _platforms_at(suite, api)
    return (*_pools(platforms), *_trainings(suite, platforms), _crash_silent_runs(suite))


def _platforms_at(suite: Suite, api: str) -> dict[str, Platform]:
    return {name: platform for name, platform in suite.platforms.items() if platform.api == api}


def _blocks(suite: Suite, addresses: Mapping[str, str]) -> Iterator[Item]:
    for block in dict.fromkeys(alert.block for alert in suite.alerts):
        yield Item("block", block, {"address": addresses[block]} if block in addresses else {})


def pool_limit(platforms: Iterable[Platform]) -> int:
    """Return how many concurrent runs a work pool needs."""
    queues: dict[str, int] = {}
    for platform in platforms:
        queues[platform.queue] = max(queues.get(platform.queue, 0), platform.concurrency)
    return sum(queues.values())


def _pools(platforms: Mapping[str, Platform], controllers: str = "") -> Iterator[Item]:
    pools: dict[str, list[Platform]] = {}
    for platform in platforms.values():
        pools.setdefault(platform.work_pool, []).append(platform)
    for pool, sharing in pools.items():
        yield Item("work-pool", pool, initial={"type": "process", "concurrency_limit": pool_limit(sharing)})
    if controllers and controllers not in pools:
        yield Item("work-pool", controllers, initial={"type": "process", "concurrency_limit": None})


def _trainings(suite: Suite, platforms: Mapping[str, Platform]) -> Iterator[Item]:
    for name, platform in platforms.items():
        common = {
            "work_pool": platform.work_pool, "work_queue": platform.queue or _DEFAULT_QUEUE,
            "tags": ["plumbline", suite_tag(suite.name), f"platform:{name}"],
        }  # fmt: skip
        yield _deployment(
            training_deployment(suite.name, name),
            entrypoint="plumbline.flows.training.training",
            description=f"One training on {name}; a round of {suite.name} dispatches it.",
            **common,
        )
        yield _deployment(
            gate_deployment(suite.name, name),
            entrypoint="plumbline.flows.upgrade.gate",
            description=f"The upgrade gate on {name}; an upgrade of {suite.name} dispatches it.",
            **common,
        )


def _rounds(suite: Suite, controllers: str) -> Iterator[Item]:
    tags, schedule = ["plumbline", suite_tag(suite.name)], suite.schedule
    common = {"work_pool": controllers, "parameters": suite_parameters(suite)}
    yield _deployment(
        f"{REGRESSION}/{suite.name}",
        entrypoint="plumbline.flows.regression.regression",
        tags=[*tags, ROUND_TAG],
        description=f"One round of {suite.name}: train on every platform, compare, name the cause, report, alert.",
        cron=schedule.cron if schedule else None,
        timezone=schedule.timezone if schedule else None,
        collision_strategy="ENQUEUE" if suite.dispatch.overlap == "queue" else "CANCEL_NEW",
        **common,
    )
    yield _deployment(
        f"{UPGRADE}/{suite.name}",
        entrypoint="plumbline.flows.upgrade.upgrade",
        # With the tag of rounds, a crashed run is resumed, and a run without a verdict is alerted.
        tags=[*tags, ROUND_TAG],
        description=f"Train {suite.name} under a candidate lock on every platform, and name the package that differs.",
        collision_strategy="ENQUEUE",
        **common,
    )
    yield _deployment(
        f"{WATCH}/{suite.name}",
        entrypoint="plumbline.flows.watch.watch",
        tags=[*tags, _WATCH_TAG],
        description=f"Continue crashed rounds of {suite.name}, alert about missed ones, and send pending alerts.",
        cron=_WATCH_CRON,
        timezone="UTC",
        # Of all that became late while no worker was there, one runs.
        collision_strategy="CANCEL_NEW",
        **common,
    )


def _deployment(name: str, **fields: Any) -> Item:
    empty: dict[str, Any] = {"parameters": {}, "cron": None, "timezone": None, "collision_strategy": None}
    fields = {**empty, **fields}
    initial = {
        "job_variables": {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(_HEARTBEAT_SECONDS)}},
        # One round, and one watch, of a suite at a time: Prefect's own limit replaces a lock.
        "concurrency_limit": 1 if fields["collision_strategy"] else None,
    }
    return Item("deployment", name, fields, initial)


def _automations(suite: Suite, controllers: str) -> Iterator[Item]:
    # With a lock in its payload the event starts the gate; without one, that flow starts a round.
    yield _automation(
        f"plumbline {suite.name}: round after an upgrade",
        expect=[UPGRADE_EVENT],
        action={
            "type": "run-deployment", "deployment": f"{UPGRADE}/{suite.name}",
            "parameters": {"candidate": _from_event(_LOCK_OF_EVENT), "platforms": _from_event(_PLATFORMS_OF_EVENT)},
        },
    )  # fmt: skip
    yield _crash_silent_runs(suite)
    # The server reports the watch's own end, as no watch could: its worker is gone, or cannot import the flows.
    body = (
        f"No watch of {suite.name} has ended for {_UNWATCHED_SECONDS // 60} minutes: no crashed round is resumed, and"
        f" no missed one alerted. See the worker of the work pool {controllers}, and the runs of {WATCH}/{suite.name}."
    )
    ends = ["prefect.flow-run.Completed", "prefect.flow-run.Failed"]
    for block in dict.fromkeys(alert.block for alert in suite.alerts if "missed" in alert.on):
        yield _automation(
            f"plumbline {suite.name}: no watch, to {block}",
            expect=ends,
            after=ends,
            related=[f"prefect.tag.{suite_tag(suite.name)}", f"prefect.tag.{_WATCH_TAG}"],
            posture="Proactive",
            within=_UNWATCHED_SECONDS,
            action={
                "type": "send-notification", "block": block, "body": body,
                "subject": f"[plumbline] {suite.name}: nothing watches its rounds",
            },
        )  # fmt: skip


def _crash_silent_runs(suite: Suite) -> Item:
    return _automation(
        f"plumbline {suite.name}: crash silent runs",
        # A pod that is evicted schedules its run again, which may wait for a node.
        expect=[f"prefect.flow-run.{name}" for name in ("heartbeat", "AwaitingRetry", *_ENDS)],
        after=["prefect.flow-run.heartbeat"],
        for_each=["prefect.resource.id"],
        related=[f"prefect.tag.{suite_tag(suite.name)}"],
        posture="Proactive",
        within=_SILENT_SECONDS,
        action={
            "type": "change-flow-run-state", "state": "CRASHED", "name": "Crashed",
            "message": f"no heartbeat for {_SILENT_SECONDS} s: its machine may be gone",
        },
    )  # fmt: skip


def _from_event(template: str) -> dict[str, Any]:
    """Return a template parameter that Prefect fills in from the event."""
    return {"__prefect_kind": "json", "value": {"__prefect_kind": "jinja", "template": template}}


def _automation(name: str, *, related: list[str] | None = None, action: dict[str, Any], **trigger: Any) -> Item:
    """Describe an automation in Prefect's API format, by names instead of ids."""
    empty: dict[str, Any] = {"after": [], "for_each": [], "posture": "Reactive", "within": 0}
    trigger = {**empty, **trigger, "related": related or []}
    trigger["expect"] = sorted(trigger["expect"])
    return Item("automation", name, {"trigger": trigger, "action": action, "enabled": True})
