"""The recipes in force: the RunSpec of each workload of a suite, as the central store keeps them for the nights."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.central import CentralStore
from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.schema.base import read_model
from plumbline.schema.spec import RunSpec, SpecFile
from plumbline.schema.suite import Suite

__all__ = ["keep_recipes", "read_recipes"]


def _key(suite: Suite, workload: str) -> str:
    return f"specs/{suite.name}/{workload}.json"


def keep_recipes(central: CentralStore, suite: Suite, specs: Mapping[str, RunSpec]) -> None:
    """Keep the recipes for the rounds to come; writing the same ones again changes nothing."""
    for workload, spec in specs.items():
        central.put_text(_key(suite, workload), SpecFile(digest=spec.digest, spec=spec).model_dump_json())


def read_recipes(central: CentralStore, suite: Suite) -> dict[str, RunSpec]:
    """The recipe of each workload; an error where none was made yet, or where the workload has changed since."""
    return {workload: _read(central, suite, workload) for workload in suite.workloads}


def _read(central: CentralStore, suite: Suite, workload: str) -> RunSpec:
    key = _key(suite, workload)
    found = central.read_pointer(key)
    if found is None:
        hint = "publish data and recipes with `plumbline deploy SUITE --publish`"
        raise ConfigurationError("no recipe was published yet", where=central.store.url, key=key, hint=hint)
    file = read_model(SpecFile, found[0], where=f"{central.store.url}/{key}")
    if file.spec.digest != file.digest:
        raise InvalidInputError("is not the digest of its content", where=central.store.url, key=key)
    asked = suite.workloads[workload]
    same = ("seed", "batch_size", "task", "optimizer", "schedule", "probe", "speed", "learn")
    changed = [name for name in same if getattr(file.spec, name) != getattr(asked, name)]
    if changed:
        hint = "publish the new recipe with `plumbline deploy SUITE --publish`"
        what = f"the suite says something else now: {', '.join(changed)}"
        raise ConfigurationError(what, where=central.store.url, key=key, hint=hint)
    return file.spec
