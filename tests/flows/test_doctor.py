"""`plumbline doctor` against a real server: no worker, no pool, no API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from plumbline.cli.main import main
from plumbline.schema.suite import Suite
from tasks.deploying import deploy_trainings
from tests.flows.ground import to_toml


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    return {one["where"]: one for one in json.loads(capsys.readouterr().out)["checks"]}


def test_the_doctor_on_a_server(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    command = ["doctor", str(path), "--state", str(tmp_path), "--json"]
    assert main(command) == 2
    found = checks(capsys)
    assert "there is no work pool" in str(found["aws: worker"]["what"])
    assert "plumbline deploy" in str(found["aws: worker"]["mend"])
    assert found["central store"]["well"]
    deploy_trainings(suite, python=None)
    main(command)
    assert "no worker online" in str(checks(capsys)["aws: worker"]["what"])
    client.send_worker_heartbeat(suite.platforms["aws"].work_pool, "w1", heartbeat_interval_seconds=30)
    main(command)
    found = checks(capsys)
    assert found["aws: worker"]["well"]
    assert not found["azure: worker"]["well"]
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        main(command)
    assert "PREFECT_API_URL" in str(checks(capsys)["Prefect API"]["mend"])
