"""RunSpecs in force for each workload of a suite, in the central store."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.central import CentralStore
from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.schema.base import read_model
from plumbline.schema.spec import RunSpec, SpecFile
from plumbline.schema.suite import Suite


def _key(suite: Suite, workload: str) -> str:
    return f"specs/{suite.name}/{workload}.json"


def write_specs(central: CentralStore, suite: Suite, specs: Mapping[str, RunSpec]) -> None:
    """Write the specs for later rounds. Idempotent."""
    for workload, spec in specs.items():
        central.put_text(_key(suite, workload), SpecFile(digest=spec.digest, spec=spec).model_dump_json())


def read_specs(central: CentralStore, suite: Suite) -> dict[str, RunSpec]:
    """Return each workload's spec; raise if missing or outdated."""
    return {workload: _read(central, suite, workload) for workload in suite.workloads}


def _read(central: CentralStore, suite: Suite, workload: str) -> RunSpec:
    key = _key(suite, workload)
    data = central.read_document(key)
    if data is None:
        hint = "publish data and specs with `plumbline deploy SUITE --publish`"
        raise ConfigurationError("no spec was published yet", where=central.store.url, key=key, hint=hint)
    file = read_model(SpecFile, data, where=f"{central.store.url}/{key}")
    if file.spec.digest != file.digest:
        raise InvalidInputError("is not the digest of its content", where=central.store.url, key=key)
    asked = suite.workloads[workload]
    same = ("seed", "batch_size", "task", "optimizer", "schedule", "probe", "speed", "learn")
    changed = [name for name in same if getattr(file.spec, name) != getattr(asked, name)]
    if changed:
        hint = "publish the new spec with `plumbline deploy SUITE --publish`"
        text = f"the suite differs from the published spec: {', '.join(changed)}"
        raise ConfigurationError(text, where=central.store.url, key=key, hint=hint)
    return file.spec
