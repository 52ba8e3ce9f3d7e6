"""Doctor check results, and checks of alert recipients and work pool settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plumbline.schema.alert_event import EVENTS, is_good_news
from plumbline.schema.base import Model
from plumbline.schema.errors import AccessError, ExitCode, PlumblineError, Refusal
from plumbline.schema.store_url import kind_at
from plumbline.schema.suite import Platform, Suite
from plumbline.schema.suite_file import suggest_or_list


class CheckResult(Model):
    """Result of one doctor check."""

    where: str
    what: str
    well: bool = False
    hint: str = ""
    code: int = int(ExitCode.PASS)
    size: int = 0
    """Bytes that a round stages from this store."""


def failed(where: str, what: str, hint: str, code: ExitCode = ExitCode.USAGE) -> CheckResult:
    """Return a failed check result."""
    return CheckResult(where=where, what=what, hint=hint, code=int(code))


def from_error(where: str, error: PlumblineError, hint: str = "") -> CheckResult:
    """Convert an error to a failed check result."""
    text = ": ".join(part for part in (error.where, error.key, error.what) if part)
    return CheckResult(where=where, what=text, hint=hint or error.hint, code=int(error.exit_code))


def worst_code(check_results: Iterable[CheckResult]) -> int:
    """Return the exit code: configuration errors outrank unavailability."""
    codes = [result.code for result in check_results if not result.well]
    order = (int(ExitCode.USAGE), int(ExitCode.INVALID), int(ExitCode.INCONCLUSIVE))
    return next((code for code in order if code in codes), int(ExitCode.PASS))


def explain_refusal(error: AccessError, url: str, needs: str) -> tuple[str, str]:
    """Return problem and hint for a refused store access."""
    kind = kind_at(url)
    if error.refusal is Refusal.CLOCK:
        return f"skewed clock: {error.what}", "start a time service here (chrony, systemd-timesyncd)"
    if error.refusal is Refusal.CREDENTIALS:
        hint = f"set credentials for {url} in this environment: {kind.credentials}{kind.also}"
        return f"wrong credentials: {error.what}", hint
    if error.refusal is Refusal.PERMISSIONS:
        example = f" ({kind.grants} has the policies)" if kind.grants else ""
        return f"wrong permissions: {error.what}", f"allow this environment's identity to {needs} {url}{example}"
    return error.what, error.hint or "check the credentials and permissions of this environment"


def examine_recipients(suite: Suite) -> Iterator[CheckResult]:
    """Check that every non-passing event has an alert recipient.

    A suite without any recipient may rely on automations of Prefect: that is not a failure.
    """
    where = f"{suite.name}: alerts"
    if not suite.alerts:
        if suite.schedule is not None:
            text = "the suite has no [[alerts]] recipient: only automations of Prefect can report a round"
            yield CheckResult(where=where, what=text, well=True)
        return
    heard = {event for alert in suite.alerts for event in alert.on}
    if not any(platform.machines for platform in suite.platforms.values()):
        heard.add("left-on")
    unheard = [event for event in EVENTS if event not in heard and not is_good_news(event)]
    if not unheard:
        yield CheckResult(where=where, what="every round that does not pass reaches a recipient", well=True)
        return
    events = ", ".join(unheard)
    yield CheckResult(
        where=where,
        what=f"no recipient gets {events}",
        hint=f"add {events} to `on` of an [[alerts]] table: docs/how-to/alerts.md",
        code=int(ExitCode.USAGE),
    )


@dataclass(frozen=True, slots=True)
class WorkPoolView:
    """Work pool settings that decide how runs start."""

    name: str
    kind: str
    limit: int | None
    """Maximum number of runs at once."""
    variables: Mapping[str, Mapping[str, Any]]
    """Variables of the base job template, with their properties."""

    def value(self, variable: str, platform: Platform) -> Any:
        """Return a job variable's value in a platform's runs."""
        return platform.job_variables.get(variable, self.variables.get(variable, {}).get("default"))


def pool_misfits(pool: WorkPoolView, platform: Platform, needed: int) -> Iterator[tuple[str, str]]:
    """Yield (text, hint) for each platform setting that the work pool ignores.

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
    """Yield pool timeouts that are shorter than the round's own."""
    wanted = {
        "pod_watch_timeout_seconds": ("start_seconds", platform.start_seconds),
        "active_deadline_seconds": ("start_seconds + run_seconds", platform.start_seconds + platform.run_seconds),
    }
    for variable, (keys, seconds) in wanted.items():
        value = pool.value(variable, platform)
        if isinstance(value, int | float) and value < seconds:
            text = f"{pool.name} gives a run up after {value:g} s ({variable}), before {keys}, {seconds:g} s"
            yield text, f"set job_variables.{variable} = {seconds:g} or more in the suite, or in the pool"
