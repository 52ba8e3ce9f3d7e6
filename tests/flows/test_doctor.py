"""`plumbline doctor` against a real server: no worker, no pool, no API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from plumbline.cli.main import main
from plumbline.localstack import services
from plumbline.localstack.ports import reserve_port
from plumbline.localstack.process import start, stop
from plumbline.localstack.stack import Stack
from plumbline.schema.suite import Suite
from tests.flows.clocks import jumped_clock
from tests.flows.small_suite import to_toml
from tests.flows.stubs import deploy


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    return {item["where"]: item for item in json.loads(capsys.readouterr().out)["checks"]}


def write(suite: Suite, folder: Path) -> Path:
    path = folder / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    return path


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
    deploy(suite)
    main(command)
    assert "no worker online" in str(checks(capsys)["aws: worker"]["what"])
    client.send_worker_heartbeat(suite.platforms["aws"].work_pool, "w1", heartbeat_interval_seconds=30)
    main(command)
    result = checks(capsys)
    assert result["aws: worker"]["well"]
    assert not result["azure: worker"]["well"]
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        main(command)
    assert "PREFECT_API_URL" in str(checks(capsys)["Prefect API"]["hint"])


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


def test_a_clock_that_is_off_here_is_told_of_this_machine_not_of_every_worker(
    stack: Stack, suite: Suite, tmp_path: Path
) -> None:
    path = write(suite, tmp_path)
    command = [sys.executable, "-m", "plumbline", "doctor", str(path), "--state", str(tmp_path), "--json"]
    prefect = services.prefect_environment(stack.api_url, tmp_path / "home")
    environment = {**services.inherited(), **prefect, **jumped_clock(tmp_path, -7200.0)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    result = {item["where"]: item for item in json.loads(done.stdout)["checks"]}["Prefect API's clock"]
    assert re.fullmatch(r"7[12][0-9]{2} s ahead of this machine.s", result["what"])
    assert "time service here, or on the server" in result["hint"]


def test_a_server_that_wants_a_password(suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, home = reserve_port(), tmp_path / "locked"
    url = f"http://127.0.0.1:{port}/api"
    environment = {**services.inherited(), **services.prefect_environment(url, home)}
    environment["PREFECT_SERVER_API_AUTH_STRING"] = "admin:secret"
    command = services.prefect_server_command(port)
    server = start("locked", command, log=tmp_path / "locked.log", environment=environment, folder=home)
    try:
        while not services.answers(f"{url}/health"):
            assert server.alive, server.last_line()
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
