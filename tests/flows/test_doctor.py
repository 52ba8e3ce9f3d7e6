"""`plumbline doctor` against a real server: no worker, no pool, no API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from plumbline.local.process import start, stop
from plumbline.local.servers import reserve_port
from plumbline.schema.extras import resource
from plumbline.schema.suite import Alert, Schedule, Suite
from tests.flows.clocks import jumped_clock
from tests.flows.conftest import Server
from tests.flows.small_suite import to_toml
from tests.flows.stubs import deploy, deploy_round


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    return {item["where"]: item for item in json.loads(capsys.readouterr().out)["checks"]}


def write(suite: Suite, folder: Path) -> Path:
    path = folder / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    return path


def open_path(client: SyncPrefectClient, pool: str) -> None:
    """Undo every pause and limit of the pool and its queue."""
    client.update_work_pool(pool, WorkPoolUpdate(is_paused=False, concurrency_limit=1))
    queue = client.read_work_queue_by_name("default", pool)
    client.update_work_queue(queue.id, is_paused=False, concurrency_limit=1)


@pytest.mark.long
def test_a_pool_or_a_queue_that_starts_no_run_is_found(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy_round(suite)
    pool, where = suite.platforms["aws"].work_pool, "aws: worker"
    client.send_worker_heartbeat(pool, "w1", heartbeat_interval_seconds=600)
    queue = client.read_work_queue_by_name("default", pool).id
    command = ["doctor", str(write(suite, tmp_path)), "--state", str(tmp_path), "--json"]
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
        main(command)
        result = checks(capsys)[where]
        assert (result["well"], result["code"], result["what"]) == (False, 3, what)
        assert f"{pool}" in str(result["hint"])
        open_path(client, pool)
    main(command)
    assert checks(capsys)[where]["well"]


@pytest.mark.long
def test_the_schedule_is_the_one_that_prefect_has_planned(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = suite.replace(schedule=Schedule(cron="0 2 * * *", timezone="Europe/Berlin"))
    deploy_round(suite)
    command = ["doctor", str(write(suite, tmp_path)), "--state", str(tmp_path), "--json"]
    main(command)
    result = checks(capsys)
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
    main(command)
    result = checks(capsys)
    assert result[name]["what"] == "differs from the file: cron"
    assert result[f"{suite.name}: schedule"]["what"] == "is paused on the server"
    workloads = {"tiny": suite.workloads["tiny"].replace(seed=8)}
    alerts = [Alert(on=("drift",), block="apprise-url/missing")]
    write(suite.replace(workloads=workloads, schedule=Schedule(cron="30 4 * * *"), alerts=alerts), tmp_path)
    main(command)
    result = checks(capsys)
    assert result[name]["what"] == "differs from the file: parameters, cron, timezone"
    assert "does not exist" in str(result["alerts: apprise-url/missing"]["what"])


@pytest.mark.long
def test_several_suites_on_one_server_are_told_to_use_postgresql(
    suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy_round(suite)
    other = suite.replace(name=f"{suite.name}-b"[-60:])
    assert main(["deploy", str(write(other, tmp_path))]) == 0
    capsys.readouterr()
    main(["doctor", str(write(other, tmp_path)), "--state", str(tmp_path), "--json"])
    assert "may run on SQLite, which its API does not show" in str(checks(capsys)["Prefect API's database"]["what"])


@contextmanager
def proxy_without_websockets(api_url: str) -> Iterator[str]:
    """Start a reverse proxy with a path prefix that asks for a header; yield the API's address there."""
    upstream = urlsplit(api_url)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Upgrade") or self.headers.get("X-Team") != "ml":
                self.send_response(403)
                self.end_headers()
                return
            connection = HTTPConnection(str(upstream.netloc), timeout=300)
            headers = {
                key: self.headers[key] for key in ("Authorization", "Content-Type", "Accept") if key in self.headers
            }
            connection.request(self.command, self.path.removeprefix("/prefect"), body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", ""))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_POST = do_GET  # noqa: N815 - the base class's form

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/prefect/api"
    finally:
        server.shutdown()
        server.server_close()


def test_a_proxy_that_refuses_websockets_is_found(
    server: Server, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["doctor", str(write(suite, tmp_path)), "--state", str(tmp_path), "--json"]
    with proxy_without_websockets(server.api_url) as url:
        with temporary_settings({PREFECT_API_URL: url}):
            main(command)
        assert "wrong credentials: HTTP 403" in str(checks(capsys)["Prefect API"]["what"])
        with temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_CUSTOM_HEADERS: {"X-Team": "ml"}}):
            main(command)
    result = checks(capsys)
    assert result["Prefect API"]["well"]
    events = result["Prefect API's events"]
    assert (events["well"], events["code"]) == (False, 3)
    assert str(events["what"]).startswith(f"no websocket to {url}/events/in: ")
    assert "let the proxy pass websockets" in str(events["hint"])


def test_the_doctor_on_a_server(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(suite, tmp_path)
    command = ["doctor", str(path), "--state", str(tmp_path), "--json"]
    assert main(command) == 2
    result = checks(capsys)
    assert "does not exist" in str(result["aws: worker"]["what"])
    assert "plumbline deploy" in str(result["aws: worker"]["hint"])
    assert result["central store"]["well"]
    deploy(suite, controllers=f"{suite.name}-ctl")
    main(command)
    result = checks(capsys)
    assert "no worker online" in str(result["aws: worker"]["what"])
    assert "no worker online" in str(result["controllers: worker"]["what"])
    client.send_worker_heartbeat(suite.platforms["aws"].work_pool, "w1", heartbeat_interval_seconds=30)
    main(command)
    result = checks(capsys)
    assert result["aws: worker"]["well"]
    assert not result["azure: worker"]["well"]
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        main(command)
    assert "PREFECT_API_URL" in str(checks(capsys)["Prefect API"]["hint"])


@pytest.mark.long
@pytest.mark.parametrize("ephemeral", ["false", "true"])
def test_without_an_api_url_nothing_is_done_on_a_server_that_nobody_named(
    suite: Suite, tmp_path: Path, ephemeral: str
) -> None:
    path = str(write(suite, tmp_path))
    prefect = {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": ephemeral}
    environment = {**services.inherited(), **prefect, "DO_NOT_TRACK": "1"}

    def plumbline(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "plumbline", *words], env=environment, cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip

    line = "PREFECT_API_URL is not set (hint: set it to the server's address: http://HOST:4200/api)"
    for command in (["deploy", path], ["run", path, "--api", "--json"]):
        done = plumbline(*command)
        printed = json.loads(done.stdout)["exit_code"] if "--json" in command else done.stdout
        assert (done.returncode, printed) == (2, 2 if "--json" in command else "")
        assert f"plumbline: {line}\n" in done.stderr
        assert "Traceback" not in done.stderr
    # The doctor tells it among its other findings.
    done = plumbline("doctor", path, "--json")
    result = {item["where"]: item for item in json.loads(done.stdout)["checks"]}
    assert (done.returncode, result["Prefect API"]["what"]) == (2, "PREFECT_API_URL is not set")
    assert result["Prefect API"]["hint"] == "set it to the server's address: http://HOST:4200/api"
    assert result["central store"]["well"]


@pytest.mark.long
@pytest.mark.compiler
def test_a_clock_that_is_off_here_is_told_of_this_machine_not_of_every_worker(
    server: Server, suite: Suite, tmp_path: Path
) -> None:
    path = write(suite, tmp_path)
    command = [sys.executable, "-m", "plumbline", "doctor", str(path), "--state", str(tmp_path), "--json"]
    prefect = services.prefect_environment(server.api_url, tmp_path / "home", server.login)
    environment = {**services.inherited(), **prefect, **jumped_clock(tmp_path, -7200.0)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    result = {item["where"]: item for item in json.loads(done.stdout)["checks"]}["Prefect API's clock"]
    assert re.fullmatch(r"7[12][0-9]{2} s ahead of this machine.s", result["what"])
    assert "time service here, or on the server" in result["hint"]


@pytest.mark.long
def test_a_server_that_wants_a_password(suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, home = reserve_port(), tmp_path / "locked"
    url = f"http://127.0.0.1:{port}/api"
    environment = {**services.inherited(), **services.prefect_environment(url, home, "")}
    environment["PREFECT_SERVER_API_AUTH_STRING"] = "admin:secret"
    command = services.prefect_server_command(port)
    server = start("locked", command, log=tmp_path / "locked.log", environment=environment, folder=home)
    try:
        while not services.answers(f"{url}/health"):
            assert server.alive, server.last_lines()
            time.sleep(0.1)
        with temporary_settings({PREFECT_API_URL: url}):
            assert main(["doctor", str(write(suite, tmp_path)), "--state", str(tmp_path), "--json"]) == 2
            check = checks(capsys)["Prefect API"]
            assert check["what"] == f"{url}: wrong credentials: HTTP 401"
            assert "PREFECT_API_KEY, or PREFECT_API_AUTH_STRING" in str(check["hint"])
            assert main(["deploy", str(write(suite, tmp_path))]) == 2
        assert "PREFECT_API_AUTH_STRING" in capsys.readouterr().err
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: "admin:secret"}):
            main(["doctor", str(write(suite, tmp_path)), "--state", str(tmp_path), "--json"])
        assert checks(capsys)["Prefect API"]["well"]
    finally:
        stop([server], grace_seconds=10)


def test_a_local_suite_is_checked_without_what_only_its_round_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The buckets of a local suite exist only while `plumbline run` does: each advice about them was wrong."""
    monkeypatch.chdir(tmp_path)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert main(["doctor", str(resource("deployments/suites/local.toml")), "--json"]) == 0
    result = checks(capsys)
    assert set(result) == {"this machine's disk", "local"}
    assert "run only while `plumbline run` does" in result["local"]["what"]
