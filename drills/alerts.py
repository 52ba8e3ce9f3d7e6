"""`python -m drills.alerts`: check the alerts of real rounds, on stock servers and workers.

Four rounds with a drift in two of them: one alert through a receiver that fails at first, and one for the recovery.
A controller's process is killed: the round continues, and nobody is alerted. The server is away over the minute of a
round: a check from outside Prefect alerts once, and the watch flow that returns with the server adds nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from drills.processes import SERVER
from drills.transcript import expect, say, wait_until
from plumbline.night.deployment import REGRESSION, WATCH
from plumbline.schema.suite import Alert, Schedule
from plumbline.tasks.prefect_client.api import read_planned
from tests.flows.local_stack import RunningStack, running_stack
from tests.flows.small_suite import small_suite
from tests.flows.webhook_server import Receiver, receiver

__all__ = ["main"]

NAME = "drill-alerts"
_GRACE_SECONDS = 5


def _titles(hook: Receiver, words: str) -> list[str]:
    return [alert["title"] for alert in hook.got if words in alert["title"]]


def _command(stack: RunningStack, hook: Receiver, *arguments: str) -> str:
    """Run `plumbline` on the suite as a person would, and return its output."""
    path = stack.write_suite(stack.suite)
    command = [sys.executable, "-m", "plumbline", arguments[0], str(path), *arguments[1:]]
    environment = {**stack.stack.environment(), "HOOK": hook.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    said = (f"{done.stdout}\n{done.stderr}".strip() or "no output").splitlines()[-1]
    expect(done.returncode == 0, f"plumbline {' '.join(arguments[:2])}: {said}")
    return done.stdout


def four_nights(stack: RunningStack, hook: Receiver) -> None:
    """Azure shuffles with a different seed in the second and the third night."""
    shuffles = {"PYTHONPATH": "{root}/bench/faults/site:{root}", "PLUMBLINE_FAULT": "inputs.order_seed"}
    path = stack.write_suite(stack.suite)
    for night, fault in enumerate(({}, shuffles, shuffles, {}), 1):
        stack.stop_worker("azure")
        stack.stack.suite = stack.suite.replace(local={"azure": {"environment": fault}})
        stack.start_worker("azure")
        stack.until_online("azure")
        hook.answers = [500, 500, 500] if night == 2 else []
        num_requests, num_alerts = hook.asked, len(hook.got)
        round_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{night}"
        verdict = stack.start_deployed(path, stack.suite, round_id).verdict()
        expect(verdict["verdict"] == ("drift" if fault else "pass"), f"night {night}: {verdict['verdict']}")
        titles = [alert["title"] for alert in hook.got[num_alerts:]]
        wanted = {2: "drift on azure: data.order", 4: "azure has recovered"}.get(night)
        is_right = len(titles) == 1 and wanted in titles[0] if wanted else not titles
        expect(is_right, f"night {night}: alerts {titles or 'none'}, {hook.asked - num_requests} requests")
        if night == 2:
            for line in hook.got[-1]["message"].splitlines():
                say(f"    | {line.replace(str(stack.stack.state), 'STATE')}")


def controller_crashes(stack: RunningStack, hook: Receiver, client: SyncPrefectClient) -> None:
    """A controller's process is killed while it waits for workers."""
    run = run_deployment(f"{REGRESSION}/{NAME}", timeout=0)

    def is_running() -> bool:
        state = client.read_flow_run(run.id).state
        return bool(state and state.is_running() and stack.controllers())

    wait_until(is_running, "the controller runs")
    for pid in stack.controllers():
        os.kill(pid, 9)
    say("the controller's process is killed with SIGKILL")
    wait_until(lambda: _has_verdict(client, run.id), "the resumed round has ended", 420)
    expect(not _titles(hook, "without a verdict"), f"no alert about the crash: {_titles(hook, 'without a verdict')}")


def _has_verdict(client: SyncPrefectClient, run_id: UUID) -> bool:
    state = client.read_flow_run(run_id).state
    return state is not None and state.is_final() and not state.is_crashed()


def _is_planned() -> bool:
    with get_client(sync_client=True) as client:
        planned = read_planned(client, f"{REGRESSION}/{NAME}", datetime.now(UTC))
    return planned is not None and bool(planned.times)


def server_away_over_the_hour(stack: RunningStack, hook: Receiver) -> None:
    """The server is killed before the minute of the round, and starts again after the grace time."""
    # More than a minute ahead: the round before must not count as an early start of this one.
    due = (datetime.now(UTC) + timedelta(seconds=125)).replace(second=0, microsecond=0)
    stack.suite = stack.suite.replace(
        schedule=Schedule(cron=f"{due.minute} {due.hour} * * *", grace_seconds=_GRACE_SECONDS)
    )
    _command(stack, hook, "deploy")
    wait_until(_is_planned, "Prefect has planned the round", 30)
    _command(stack, hook, "doctor", "--missed")
    with stack.held():
        stack.kill(SERVER)
        say(f"the server is killed; a round is due at {due:%H:%M} UTC")
        over = due + timedelta(seconds=_GRACE_SECONDS + 1)
        wait_until(lambda: datetime.now(UTC) > over, "the minute and its grace time are over", 150)
        expect("did not start" in _command(stack, hook, "doctor", "--missed"), "the check finds it without the server")
        _command(stack, hook, "doctor", "--missed")
        expect(len(_titles(hook, "did not run")) == 1, f"after two checks one alert has arrived: {hook.got[-1]}")
    wait_until(lambda: bool(stack.processes(SERVER)), "the server is started again")
    stack.stack.servers.wait_for_api()
    watch = run_deployment(f"{WATCH}/{NAME}", timeout=90)
    expect(bool(watch.state and watch.state.is_completed()), f"the watch has run: {watch.state.message}")
    expect(len(_titles(hook, "did not run")) == 1, "there is no second alert")


def main() -> None:
    """Run all drills in sequence."""
    with tempfile.TemporaryDirectory(prefix="plumbline-drill-") as folder, receiver() as hook:
        state = Path(folder)
        every = ("drift", "invalid", "recovered", "missed")
        suite = small_suite(state, NAME).replace(
            dispatch={"experiments": 0}, schedule=Schedule(cron="0 0 1 1 *"),
            alerts=[Alert(on=every, block="apprise-url/drill", address_from="HOOK")],
        )  # fmt: skip
        os.environ["HOOK"] = hook.url  # for the deploy of the stack, and for its controllers
        with (
            running_stack(state, suite=suite) as stack,
            temporary_settings({PREFECT_API_URL: stack.stack.api_url, PREFECT_API_AUTH_STRING: stack.stack.login}),
        ):
            _command(stack, hook, "doctor", "--alerts")
            four_nights(stack, hook)
            for name in stack.suite.platforms:
                stack.stop_worker(name)
            with get_client(sync_client=True) as client:
                controller_crashes(stack, hook, client)
            server_away_over_the_hour(stack, hook)
    say("all drills passed")


if __name__ == "__main__":
    main()
