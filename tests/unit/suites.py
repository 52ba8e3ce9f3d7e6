"""Suites and rounds in memory: a test names the keys that it is about."""

from __future__ import annotations

from typing import Any

from plumbline.night.rounds.plan import Round
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import Suite

ROUND = "20261120-020000-abc"


def suite_of(*names: str, workloads: tuple[str, ...] = ("w",), **changes: Any) -> Suite:
    """Return a suite of these platforms; the first one is the reference.

    `platform` has keys of every platform, and `recipe` keys of every workload; all others are keys of the suite.
    """
    recipe = {"model": "tiny", "data": "d", "seed": 1, "batch_size": 8, "probe": {}} | changes.pop("recipe", {})
    store = {"data": "file:///d", "outbox": "file:///o"} | changes.pop("platform", {})
    return Suite.model_validate({
        "name": "nightly", "store": "file:///c", "reference": names[0], "workloads": dict.fromkeys(workloads, recipe),
        "platforms": {name: {"work_pool": f"{name}-gpu"} | store for name in names}, **changes,
    })  # fmt: skip


def round_of(suite: Suite, spec: RunSpec, name: str = ROUND) -> Round:
    """Return a round of the suite in which every workload has this spec."""
    return Round(name, suite, dict.fromkeys(suite.workloads, spec))
