"""Work pools that do not carry out what a platform's keys say are named before the night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.night.doctor.checks import WorkPoolView, pool_misfits
from plumbline.schema.suite import Platform

TEMPLATE = json.loads(
    (Path(__file__).resolve().parents[4] / "infra/kubernetes/gpu-job-template.json").read_text("utf-8")
)["variables"]["properties"]
BASE = {"work_pool": "gke", "data": "file:///d", "outbox": "file:///o"}


@pytest.mark.parametrize(
    ("keys", "needed", "text", "hint"),
    [
        (
            {"job_variables": {"memry": "64Gi"}}, 1,
            "job_variables.memry is not a variable of gke's base job template", "did you mean `memory`?",
        ),
        ({"concurrency": 4}, 4, "gke starts 2 at once, the suite's platforms there train 4", "-limit gke 4"),
        (
            {"start_seconds": 2400}, 1,
            "gke gives a run up after 1800 s (pod_watch_timeout_seconds), before start_seconds, 2400 s",
            "set job_variables.pod_watch_timeout_seconds = 2400 or more",
        ),
        (
            {"run_seconds": 14000}, 1,
            "gke gives a run up after 14400 s (active_deadline_seconds), before start_seconds + run_seconds, 14900 s",
            "active_deadline_seconds = 14900",
        ),
    ],
)  # fmt: skip
def test_a_key_that_the_pool_ignores_is_one_line(keys: dict[str, Any], needed: int, text: str, hint: str) -> None:
    pool = WorkPoolView("gke", "kubernetes", 2, TEMPLATE)
    ((said, advice),) = pool_misfits(pool, Platform.model_validate({**BASE, **keys}), needed)
    assert said == text
    assert hint in advice


def test_a_template_without_gpus_starts_no_training_of_two() -> None:
    two, without = Platform.model_validate({**BASE, "gpus": 2}), {**TEMPLATE}
    del without["gpus"]
    ((said, _),) = pool_misfits(WorkPoolView("ecs", "ecs", None, without), two, 1)
    assert said == "gpus is 2, and ecs's base job template has no variable gpus"
    assert not [*pool_misfits(WorkPoolView("vm", "process", None, without), two, 1)]


def test_a_pool_that_starts_one_machine_is_named() -> None:
    two = Platform.model_validate({**BASE, "nodes": 2})
    ((said, _),) = pool_misfits(WorkPoolView("vm", "process", None, {}), two, 1)
    assert said == "nodes is 2, and vm starts one machine for a run"
    assert not [*pool_misfits(WorkPoolView("gke", "kubernetes", None, TEMPLATE), two, 1)]


def test_what_fits_is_well_and_a_platforms_own_value_counts() -> None:
    fits = Platform.model_validate({
        **BASE, "gpus": 8, "concurrency": 2, "start_seconds": 3600,
        "job_variables": {"pod_watch_timeout_seconds": 3600, "env": {"A": "b"}},
    })  # fmt: skip
    assert not [*pool_misfits(WorkPoolView("gke", "kubernetes", 2, TEMPLATE), fits, 2)]
    assert not [*pool_misfits(WorkPoolView("gke", "kubernetes", None, TEMPLATE), fits, 99)]
