"""`python -m tests.flows.drill.alerts`: who is told of what, on real servers, workers and a real receiver.

Four real nights with a drift in two of them: told once, through a receiver that first fails, and once when it is over.
A controller's process is killed: the server tells it, once. The server is away over the minute of a round: a check from
outside Prefect tells it, once, and the watch that comes back with the server adds nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from plumbline.schema.suite import Alert, Schedule
from tests.flows.drill.telling import expect, say
from tests.flows.ground import Ground, ground, small_suite, to_toml
from tests.flows.receivers import Receiver, receiver

__all__ = ["main"]

NAME = "drill-alerts"
_ENGINE = "tasks.starting"
_GRACE_SECONDS = 5


def _until(found: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(0.2)
    say(f"ok: {what}")


def _titles(hook: Receiver, words: str) -> list[str]:
    return [one["title"] for one in hook.got if words in one["title"]]


def _command(this: Ground, hook: Receiver, *arguments: str) -> str:
    """Run `plumbline` on the suite as a person would; its output."""
    path = this.stack.state / "suite.toml"
    path.write_text(to_toml(this.suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    command = [sys.executable, "-m", "plumbline", arguments[0], str(path), *arguments[1:]]
    environment = {**this.stack.environment(), "HOOK": hook.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    expect(done.returncode == 0, f"plumbline {' '.join(arguments[:2])}: {done.stdout.strip().splitlines()[-1]}")
    return done.stdout


def four_nights(this: Ground, hook: Receiver) -> None:
    """Azure shuffles with another seed in the second and third night."""
    shuffles = {"PYTHONPATH": "{root}/tests/faults/site:{root}", "PLUMBLINE_FAULT": "data.order_seed"}
    for night, fault in enumerate(({}, shuffles, shuffles, {}), 1):
        this.stop_worker("azure")
        this.stack.suite = this.suite.replace(local={"azure": {"environment": fault}})
        this.start_worker("azure")
        this.until_online("azure")
        hook.answers = [500, 500, 500] if night == 2 else []
        asked, before = hook.asked, len(hook.got)
        verdict = this.start_round().verdict()
        expect(verdict["verdict"] == ("drift" if fault else "pass"), f"night {night}: {verdict['verdict']}")
        told = [one["title"] for one in hook.got[before:]]
        wanted = {2: "drift on azure: data.order", 4: "azure has recovered"}.get(night)
        right = len(told) == 1 and wanted in told[0] if wanted else not told
        expect(right, f"night {night}: told {told or 'nothing'}, asked {hook.asked - asked} times")
        if night == 2:
            for line in hook.got[-1]["message"].splitlines():
                say(f"    | {line.replace(str(this.stack.state), 'STATE')}")


def controller_crashes(this: Ground, hook: Receiver, client: SyncPrefectClient) -> None:
    """A controller's process is killed while it waits for its workers."""
    run = run_deployment(f"regression/{NAME}", timeout=0)

    def runs() -> bool:
        state = client.read_flow_run(run.id).state
        return bool(state and state.is_running() and this.processes(_ENGINE))

    _until(runs, "the controller runs")
    this.kill(_ENGINE)
    say("the controller's process is killed with -9")
    _until(lambda: bool(_titles(hook, "crashed")), "an alert has arrived")
    told = next(one for one in hook.got if "crashed" in one["title"])
    for line in (told["title"], *told["message"].splitlines()):
        say(f"    | {line}")
    time.sleep(15)
    expect(len(_titles(hook, "crashed")) == 1, "15 s later it has arrived once")


def server_away_over_the_hour(this: Ground, hook: Receiver) -> None:
    """The server is killed before the minute of the round, and comes back after its grace."""
    # More than a minute ahead: the round before, whose controller was killed, must not pass for an early start of it.
    due = (datetime.now(UTC) + timedelta(seconds=125)).replace(second=0, microsecond=0)
    this.suite = this.suite.replace(
        schedule=Schedule(cron=f"{due.minute} {due.hour} * * *", grace_seconds=_GRACE_SECONDS)
    )
    _command(this, hook, "deploy")
    _command(this, hook, "alert", "--check")
    this.kill("tasks.serving")
    say(f"the server is killed; a round is due at {due:%H:%M} UTC")
    over = due + timedelta(seconds=_GRACE_SECONDS + 1)
    _until(lambda: datetime.now(UTC) > over, "the minute and its grace are over", 150)
    expect("did not start" in _command(this, hook, "alert", "--check"), "the check finds it, with the server away")
    _command(this, hook, "alert", "--check")
    expect(len(_titles(hook, "did not run")) == 1, f"after two checks one alert has arrived: {hook.got[-1]}")
    this.stack.check()
    this.stack.servers.wait_for_api()
    say("the server is back")
    watch = run_deployment(f"watch/{NAME}", timeout=60)
    expect(bool(watch.state and watch.state.is_completed()), f"the watch has run: {watch.state.message}")
    expect(len(_titles(hook, "did not run")) == 1, "and nothing is told twice")


def main() -> None:
    """All, one after the other."""
    with tempfile.TemporaryDirectory(prefix="plumbline-drill-") as folder, receiver() as hook:
        state = Path(folder)
        every = ("drift", "invalid", "recovered", "missed")
        suite = small_suite(state, NAME).replace(
            dispatch={"experiments": 0}, schedule=Schedule(cron="0 0 1 1 *"),
            alerts=[Alert(on=every, block="apprise-url/drill", address_from="HOOK")],
        )  # fmt: skip
        with ground(state, suite=suite) as this, temporary_settings({PREFECT_API_URL: this.stack.api_url}):
            this.stack.start_controller_worker("plumbline")
            _command(this, hook, "deploy", "--publish", "--state", str(state))
            _command(this, hook, "alert", "--test")
            four_nights(this, hook)
            for name in this.suite.platforms:
                this.stop_worker(name)
            with get_client(sync_client=True) as client:
                controller_crashes(this, hook, client)
            server_away_over_the_hour(this, hook)
    say("every drill went as it should")


if __name__ == "__main__":
    main()
