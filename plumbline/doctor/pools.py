"""Checks whether a work pool can start the runs that a platform's keys describe. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plumbline.schema.suite import Platform
from plumbline.schema.suite_file import suggest_or_list


@dataclass(frozen=True, slots=True)
class WorkPoolView:
    """What decides how a work pool starts runs."""

    name: str
    kind: str
    limit: int | None
    """Maximum number of runs at once."""
    variables: Mapping[str, Mapping[str, Any]]
    """Variables of the base job template, with their properties."""

    def value(self, variable: str, platform: Platform) -> Any:
        """Return the value of a job variable in a platform's runs."""
        return platform.job_variables.get(variable, self.variables.get(variable, {}).get("default"))


def pool_misfits(pool: WorkPoolView, platform: Platform, needed: int) -> Iterator[tuple[str, str]]:
    """Yield (text, hint) for each key of the platform that the pool does not carry out.

    `needed` is the number of runs at once of all the suite's platforms in this pool.
    """
    for name in platform.job_variables:
        if pool.variables and name not in pool.variables:
            text = f"job_variables.{name} is not a variable of {pool.name}'s base job template"
            yield text, suggest_or_list(name, sorted(pool.variables))
    if platform.gpus > 1 and pool.kind != "process" and "gpus" not in pool.variables:
        text = f"gpus is {platform.gpus}, and {pool.name}'s base job template has no variable gpus"
        yield text, "use infra/kubernetes/gpu-job-template.json, or add the variable"
    if platform.nodes > 1 and "nodes" not in pool.variables:
        text = f"nodes is {platform.nodes}, and {pool.name} starts one machine for a run"
        yield text, "use a Kubernetes pool with infra/kubernetes/gpu-job-template.json"
    if pool.limit is not None and 0 < pool.limit < needed:
        text = f"{pool.name} starts {pool.limit} at once, the suite's platforms there train {needed}"
        yield text, f"`prefect work-pool set-concurrency-limit {pool.name} {needed}`"
    yield from _short_times(pool, platform)


def _short_times(pool: WorkPoolView, platform: Platform) -> Iterator[tuple[str, str]]:
    """Yield the times after which a pool gives up a run that the round still waits for."""
    wanted = {
        "pod_watch_timeout_seconds": ("start_seconds", platform.start_seconds),
        "active_deadline_seconds": ("start_seconds + run_seconds", platform.start_seconds + platform.run_seconds),
    }
    for variable, (keys, seconds) in wanted.items():
        value = pool.value(variable, platform)
        if isinstance(value, int | float) and value < seconds:
            text = f"{pool.name} gives a run up after {value:g} s ({variable}), before {keys}, {seconds:g} s"
            yield text, f"set job_variables.{variable} = {seconds:g} or more in the suite, or in the pool"
