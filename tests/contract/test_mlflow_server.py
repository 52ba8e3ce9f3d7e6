"""`plumbline store export --to mlflow` writes to a database, and to a tracking server on it, without a run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from plumbline.cli.main import main
from plumbline.local.servers import reserve_port
from tests.conftest import MLFLOW_SERVER
from tests.unit.report.site_store import filled_store, night

pytestmark = [pytest.mark.mlflow_server, pytest.mark.long]
_START_SECONDS = 240


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    port = reserve_port()
    command = [
        str(MLFLOW_SERVER), "server", "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--port", str(port),
        "--workers", "1", "--artifacts-destination", str(tmp_path / "served"),
    ]  # fmt: skip
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                requests.get(f"http://127.0.0.1:{port}/health", timeout=5).raise_for_status()
                break
            except requests.RequestException:
                assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()[-2000:]
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)


def test_a_database_and_the_server_on_it_have_each_night_once(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    filled_store(tmp_path, nights=12)
    argv = ["store", "export", str(tmp_path / "suite.toml"), "--to", "mlflow", "--json", "--last"]
    assert main([*argv, "3", "--out", f"sqlite:///{tmp_path}/mlflow.db"]) == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    capfd.readouterr()
    for last in ("3", "5", "5"):
        assert main([*argv, last]) == 0
        assert json.loads(capfd.readouterr().out)["rows"] == 2 * int(last)
    from mlflow import MlflowClient  # noqa: PLC0415 - takes seconds

    client = MlflowClient(server)
    found = client.search_runs([client.get_experiment_by_name("nightly").experiment_id])
    keys = sorted(run.data.tags["plumbline.key"] for run in found)
    assert keys == sorted(f"{night(index)}-{name}" for index in range(7, 12) for name in ("aws", "azure"))
    assert {run.info.status for run in found} == {"FINISHED"}
    page = tmp_path / f"rounds/nightly/{night(11)}/report.html"
    (newest,) = (run for run in found if run.data.tags["plumbline.key"] == f"{night(11)}-azure")
    assert Path(client.download_artifacts(newest.info.run_id, "report.html")).read_bytes() == page.read_bytes()
