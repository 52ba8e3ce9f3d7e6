"""`plumbline doctor` against a real server: no worker, no pool, no API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.schedules import CronSchedule
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    temporary_settings,
)

from plumbline.cli.main import main
from plumbline.local import services
from plumbline.schema.extras import resource
from plumbline.schema.suite import Alert, Schedule, Suite
from tests.commands import run_plumbline
from tests.flows.clocks import jumped_clock
from tests.flows.conftest import Server
from tests.flows.small_suite import write_suite
from tests.flows.stubs import deploy, deploy_round
from tests.http_server import Handler, serving

Doctor = Callable[[Suite], dict[str, dict[str, object]]]


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Return a function that writes a suite's file and returns what the doctor says of each place."""

    def found(suite: Suite) -> dict[str, dict[str, object]]:
        capsys.readouterr()
        main(["doctor", str(write_suite(suite, tmp_path)), "--state", str(tmp_path), "--json"])
        return {item["where"]: item for item in json.loads(capsys.readouterr().out)["checks"]}

    return found


def open_path(client: SyncPrefectClient, pool: str) -> None:
    """Undo every pause and limit of the pool and its queue."""
    client.update_work_pool(pool, WorkPoolUpdate(is_paused=False, concurrency_limit=1))
    queue = client.read_work_queue_by_name("default", pool)
    client.update_work_queue(queue.id, is_paused=False, concurrency_limit=1)


@pytest.mark.long
def test_a_pool_or_a_queue_that_starts_no_run_is_found(client: SyncPrefectClient, suite: Suite, doctor: Doctor) -> None:
    deploy_round(suite)
    pool, where = suite.platforms["aws"].work_pool, "aws: worker"
    client.send_worker_heartbeat(pool, "w1", heartbeat_interval_seconds=600)
    queue = client.read_work_queue_by_name("default", pool).id
    closed = {
        f"work pool {pool} is paused": lambda: client.update_work_pool(pool, WorkPoolUpdate(is_paused=True)),
        f"work pool {pool} has the concurrency limit 0": lambda: client.update_work_pool(
            pool, WorkPoolUpdate(concurrency_limit=0)
        ),
        f"work queue default of {pool} is paused": lambda: client.update_work_queue(queue, is_paused=True),
        f"work queue default of {pool} has the concurrency limit 0": lambda: client.update_work_queue(
            queue, concurrency_limit=0
        ),
    }
    for what, close in closed.items():
        close()
        result = doctor(suite)[where]
        assert (result["well"], result["code"], result["what"]) == (False, 3, what)
        assert f"{pool}" in str(result["hint"])
        open_path(client, pool)
    assert doctor(suite)[where]["well"]


@pytest.mark.long
def test_the_schedule_is_the_one_that_prefect_has_planned(
    client: SyncPrefectClient, suite: Suite, doctor: Doctor
) -> None:
    suite = suite.replace(schedule=Schedule(cron="0 2 * * *", timezone="Europe/Berlin"))
    deploy_round(suite)
    result = doctor(suite)
    schedule, name = result[f"{suite.name}: schedule"], f"plumbline-regression/{suite.name}"
    deployment = client.read_deployment_by_name(name)
    planned = client.read_flow_runs(deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])))
    first = min(run.expected_start_time for run in planned if run.expected_start_time)
    assert schedule["well"]
    assert f"next rounds at {first.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%d %H:%M}" in str(schedule["what"])
    # The upgrade gates and the watch were not deployed.
    gates = f"plumbline-gate/{suite.name}-aws, plumbline-gate/{suite.name}-azure"
    assert result[suite.name]["what"] == f"not deployed: {gates}, plumbline-watch/{suite.name}"
    client.update_deployment_schedule(
        deployment.id, deployment.schedules[0].id, schedule=CronSchedule(cron="0 3 * * *", timezone="Europe/Berlin")
    )
    client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=False)
    result = doctor(suite)
    assert result[name]["what"] == "differs from the file: cron"
    assert result[f"{suite.name}: schedule"]["what"] == "is paused on the server"
    workloads = {"tiny": suite.workloads["tiny"].replace(seed=8)}
    alerts = [Alert(on=("drift",), block="apprise-url/missing")]
    result = doctor(suite.replace(workloads=workloads, schedule=Schedule(cron="30 4 * * *"), alerts=alerts))
    assert result[name]["what"] == "differs from the file: parameters, cron, timezone"
    assert "does not exist" in str(result["alerts: apprise-url/missing"]["what"])


@pytest.mark.long
def test_several_suites_on_one_server_are_told_to_use_postgresql(suite: Suite, tmp_path: Path, doctor: Doctor) -> None:
    deploy_round(suite)
    other = suite.replace(name=f"{suite.name}-b"[-60:])
    assert main(["deploy", str(write_suite(other, tmp_path))]) == 0
    assert "may run on SQLite, which its API does not show" in str(doctor(other)["Prefect API's database"]["what"])


@contextmanager
def proxy_without_websockets(api_url: str) -> Iterator[str]:
    """Start a reverse proxy with a path prefix that asks for a header; yield the API's address there."""
    upstream = urlsplit(api_url)

    class Proxy(Handler):
        def answer(self) -> None:
            body = self.body()
            if self.headers.get("Upgrade") or self.headers.get("X-Team") != "ml":
                return self.reply(403)
            connection = HTTPConnection(str(upstream.netloc), timeout=300)
            headers = {
                key: self.headers[key] for key in ("Authorization", "Content-Type", "Accept") if key in self.headers
            }
            connection.request(self.command, self.path.removeprefix("/prefect"), body or None, headers)
            far = connection.getresponse()
            self.reply(far.status, far.read(), {"Content-Type": far.getheader("Content-Type", "")})
            return connection.close()

    with serving(Proxy) as url:
        yield f"{url}/prefect/api"


def test_a_proxy_that_refuses_websockets_is_found(server: Server, suite: Suite, doctor: Doctor) -> None:
    with proxy_without_websockets(server.api_url) as url:
        with temporary_settings({PREFECT_API_URL: url}):
            assert "wrong credentials: HTTP 403" in str(doctor(suite)["Prefect API"]["what"])
        with temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_CUSTOM_HEADERS: {"X-Team": "ml"}}):
            result = doctor(suite)
    assert result["Prefect API"]["well"]
    events = result["Prefect API's events"]
    assert (events["well"], events["code"]) == (False, 3)
    assert str(events["what"]).startswith(f"no websocket to {url}/events/in: ")
    assert "let the proxy pass websockets" in str(events["hint"])


def test_the_doctor_on_a_server(client: SyncPrefectClient, suite: Suite, tmp_path: Path, doctor: Doctor) -> None:
    assert main(["doctor", str(write_suite(suite, tmp_path)), "--state", str(tmp_path)]) == 2
    result = doctor(suite)
    assert "does not exist" in str(result["aws: worker"]["what"])
    assert "plumbline deploy" in str(result["aws: worker"]["hint"])
    assert result["central store"]["well"]
    deploy(suite, controllers=f"{suite.name}-ctl")
    result = doctor(suite)
    assert "no worker online" in str(result["aws: worker"]["what"])
    assert "no worker online" in str(result["controllers: worker"]["what"])
    client.send_worker_heartbeat(suite.platforms["aws"].work_pool, "w1", heartbeat_interval_seconds=30)
    result = doctor(suite)
    assert result["aws: worker"]["well"]
    assert not result["azure: worker"]["well"]
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert "PREFECT_API_URL" in str(doctor(suite)["Prefect API"]["hint"])


@pytest.mark.long
@pytest.mark.parametrize("ephemeral", ["false", "true"])
def test_without_an_api_url_nothing_is_done_on_a_server_that_nobody_named(
    suite: Suite, tmp_path: Path, ephemeral: str
) -> None:
    path = str(write_suite(suite, tmp_path))
    prefect = {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": ephemeral}
    environment = {**services.inherited(), **prefect, "DO_NOT_TRACK": "1"}

    line = "PREFECT_API_URL is not set (hint: set it to the server's address: http://HOST:4200/api)"
    for command in (["deploy", path], ["run", path, "--api", "--json"]):
        done = run_plumbline(*command, code=2, env=environment, cwd=tmp_path)
        assert (json.loads(done.stdout)["exit_code"] == 2) if "--json" in command else not done.stdout
        assert f"plumbline: {line}\n" in done.stderr
        assert "Traceback" not in done.stderr
    # The doctor tells it among its other findings.
    done = run_plumbline("doctor", path, "--json", code=2, env=environment, cwd=tmp_path)
    result = {item["where"]: item for item in json.loads(done.stdout)["checks"]}
    assert result["Prefect API"]["what"] == "PREFECT_API_URL is not set"
    assert result["Prefect API"]["hint"] == "set it to the server's address: http://HOST:4200/api"
    assert result["central store"]["well"]


@pytest.mark.long
@pytest.mark.compiler
def test_a_clock_that_is_off_here_is_told_of_this_machine_not_of_every_worker(
    server: Server, suite: Suite, tmp_path: Path
) -> None:
    path = write_suite(suite, tmp_path)
    environment = {**server.environment(tmp_path / "home"), **jumped_clock(tmp_path, -7200.0)}
    done = run_plumbline("doctor", path, "--state", tmp_path, "--json", code=None, env=environment)
    result = {item["where"]: item for item in json.loads(done.stdout)["checks"]}["Prefect API's clock"]
    assert re.fullmatch(r"7[12][0-9]{2} s ahead of this machine.s", result["what"])
    assert "time service here, or on the server" in result["hint"]


@pytest.mark.long
def test_a_server_that_wants_a_password(
    server: Server, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str], doctor: Doctor
) -> None:
    with temporary_settings({PREFECT_API_URL: server.api_url, PREFECT_API_AUTH_STRING: None}):
        check = doctor(suite)["Prefect API"]
        assert check["code"] == 2
        assert check["what"] == f"{server.api_url}: wrong credentials: HTTP 401"
        assert "PREFECT_API_KEY, or PREFECT_API_AUTH_STRING" in str(check["hint"])
        assert main(["deploy", str(tmp_path / "suite.toml")]) == 2
    assert "PREFECT_API_AUTH_STRING" in capsys.readouterr().err
    with temporary_settings({PREFECT_API_URL: server.api_url, PREFECT_API_AUTH_STRING: server.login}):
        assert doctor(suite)["Prefect API"]["well"]


def test_a_local_suite_is_checked_without_what_only_its_round_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The buckets of a local suite exist only while `plumbline run` does: each advice about them was wrong."""
    monkeypatch.chdir(tmp_path)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert main(["doctor", str(resource("deployments/suites/local.toml")), "--json"]) == 0
    result = {item["where"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    assert set(result) == {"this machine's disk", "local"}
    assert "run only while `plumbline run` does" in result["local"]["what"]
