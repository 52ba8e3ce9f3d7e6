"""Objects on Prefect and job variables that a suite's platform keys ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.night.deployment import Item, desired, job_variables
from plumbline.night.rounds import Round
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import Platform, Suite
from plumbline.upgrade.request import Candidate, UpgradeRequest

INFRA = Path(__file__).resolve().parents[4] / "infra"
BASE = {"work_pool": "gpu", "data": "file:///d", "outbox": "file:///o"}
RECIPE = {"model": "tiny", "data": "d", "seed": 7, "batch_size": 8, "probe": {}}


def suite_of(**platforms: dict[str, Any]) -> Suite:
    places = {name: {**BASE, **keys} for name, keys in platforms.items()}
    return Suite.model_validate({
        "name": "s", "store": "file:///c", "reference": next(iter(places)), "platforms": places,
        "workloads": {"one": RECIPE, "two": RECIPE},
    })  # fmt: skip


def items_of(suite: Suite) -> dict[str, Item]:
    return {item.name: item for item in desired(suite, controllers="ctl")}


@pytest.mark.parametrize(
    ("keys", "image", "variables"),
    [
        ({}, "", None),
        ({"gpus": 8, "nodes": 2}, "", {"gpus": 8, "nodes": 2}),
        ({}, "worker:1", {"image": "worker:1", "env": {"PLUMBLINE_IMAGE": "worker:1"}}),
        (
            {"job_variables": {"image": "worker:1", "env": {"A": "b"}, "memory": "64Gi"}, "gpus": 4}, "",
            {"image": "worker:1", "env": {"A": "b", "PLUMBLINE_IMAGE": "worker:1"}, "memory": "64Gi", "gpus": 4},
        ),
        (
            {"job_variables": {"image": "worker:1"}}, "worker:2",
            {"image": "worker:2", "env": {"PLUMBLINE_IMAGE": "worker:2"}},
        ),
    ],
)  # fmt: skip
def test_the_suites_keys_reach_the_templates_variables(
    keys: dict[str, Any], image: str, variables: dict[str, Any] | None
) -> None:
    assert job_variables(Platform.model_validate({**BASE, **keys}), image) == variables
    template = json.loads((INFRA / "kubernetes" / "gpu-job-template.json").read_text("utf-8"))
    assert set(variables or {}) <= template["variables"]["properties"].keys()


def test_a_pool_has_room_for_the_trainings_of_its_queues() -> None:
    shared = items_of(suite_of(aws={}, azure={}))
    assert shared["gpu"].initial["concurrency_limit"] == 1
    own = items_of(suite_of(aws={"concurrency": 4, "queue": "a10"}, azure={"queue": "l4"}))
    assert own["gpu"].initial["concurrency_limit"] == 5
    assert own["plumbline-training/s-aws"].fields["work_queue"] == "a10"
    assert own["plumbline-gate/s-aws"].fields["work_queue"] == "a10"
    assert shared["plumbline-training/s-aws"].fields["work_queue"] == "default"
    # The queue of rounds stays as a person set it.
    assert "work_queue" not in own["plumbline-regression/s"].fields


def test_no_automation_acts_on_a_rounds_state_except_that_it_calls_a_silent_run_crashed() -> None:
    """Prefect refuses that over a final state; whatever else needs doing, the watch does."""
    automations = [item for item in items_of(suite_of(aws={})).values() if item.kind == "automation"]
    acting = {item.name: item for item in automations if item.fields["action"]["type"] == "change-flow-run-state"}
    assert acting.keys() == {"plumbline s: crash silent runs"}
    silent = acting["plumbline s: crash silent runs"].fields
    assert silent["action"]["state"] == "CRASHED"
    assert "prefect.flow-run.AwaitingRetry" in silent["trigger"]["expect"]


def test_every_suite_is_watched_and_of_late_watches_one_runs() -> None:
    watch = items_of(suite_of(aws={}))["plumbline-watch/s"]
    assert (watch.fields["cron"], watch.fields["collision_strategy"]) == ("*/3 * * * *", "CANCEL_NEW")
    assert watch.initial["concurrency_limit"] == 1


def test_a_platform_trains_the_workloads_that_it_names() -> None:
    suite = suite_of(aws={}, azure={"workloads": ["two"]})
    round_ = Round("night-1", suite, dict.fromkeys(suite.workloads))  # type: ignore[arg-type]
    assert [(one.platform, one.workload) for one in round_.assignments()] == [
        ("aws", "one"), ("aws", "two"), ("azure", "two"),
    ]  # fmt: skip
    request = UpgradeRequest(upgrade_id="u", suite=suite, candidate=Candidate(image="worker@sha256:0"))
    assert request.chosen_platforms == ("aws",)
    with pytest.raises(ConfigurationError, match="azure: does not train one"):
        _ = request.replace(platforms=("azure",)).chosen_platforms
