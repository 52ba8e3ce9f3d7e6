"""An image as the candidate, on a real server with Kubernetes pools: what the workers are sent, and the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun

from plumbline.data.stores import open_store
from plumbline.flows.upgrade import upgrade
from plumbline.night.central import CentralStore
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.suite import Suite
from plumbline.upgrade.outcome import read_outcome
from plumbline.upgrade.request import Candidate
from tests.flows.conftest import Server, gpu_template
from tests.flows.stubs import Material, StubWorkers, deploy, suite_of

IMAGE = f"registry.example.com/team/plumbline:2026-11@sha256:{'c' * 64}"


class Pods(StubWorkers):
    """Workers that train in the image of each run's job variables."""

    def __init__(self, suite: Suite, server: Server, record: Path, folder: Path) -> None:
        super().__init__(suite, server.api_url, record, folder / "work", measure=self._measured)
        self._template = RunRecord.model_validate_json((record / RECORD_NAME).read_bytes())
        self._variables: dict[str, Any] = {}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def _run(self, client: SyncPrefectClient, run: FlowRun) -> None:
        # As the API returns it, not as it was scheduled.
        self._variables = client.read_flow_run(run.id).job_variables or {}
        self.sent.append((run.name, self._variables))
        super()._run(client, run)

    def _measured(self, _order: dict[str, Any]) -> dict[str, Any]:
        image = self._variables.get("env", {}).get("PLUMBLINE_IMAGE", "")
        packages = {**self._template.fingerprint.packages, "transformers": "5.0" if image else "4.0"}
        fingerprint = self._template.fingerprint.replace(container_image=image, packages=packages)
        return {"record": {"fingerprint": fingerprint.to_json()}}


def test_a_candidate_image_trains_beside_the_pool_s_own(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "image-pass", 1)
    template = gpu_template("registry.example.com/plumbline@sha256:0")
    pool = suite.platforms["p00"].work_pool
    client.create_work_pool(WorkPoolCreate(name=pool, type="kubernetes", base_job_template=template))
    deploy(suite)
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": material[0]})
    with Pods(suite, server, material[1], tmp_path) as workers:
        state = upgrade(suite=suite, round_id="night", candidate=Candidate(image=IMAGE), return_state=True)
    outcome = read_outcome(CentralStore(open_store(suite.store)), suite.name, "night")
    assert (state.name, outcome.verdict, outcome.candidate) == ("Completed", "pass", IMAGE)
    assert [variables for _, variables in workers.sent] == [{}, {"image": IMAGE, "env": {"PLUMBLINE_IMAGE": IMAGE}}]
    assert [name.rpartition("tiny ")[2] for name, _ in workers.sent] == ["own image", "candidate image"]
    answer = outcome.platforms["p00"].answer
    assert (answer.image, answer.culprits) == (IMAGE, ())
    assert [str(change) for change in answer.changes] == ["transformers 4.0 → 5.0"]
    assert "bisecting is off: an image is one change" in answer.sentences


@pytest.mark.usefixtures("client")
def test_what_cannot_be_an_image_upgrade_is_refused_before_any_training(
    server: Server, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "image-refused", 1)
    deploy(suite)
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": material[0]})
    workers = Pods(suite, server, material[1], tmp_path)
    with workers:
        for given, words in [
            ({"image": IMAGE}, "candidate.image: no image can be chosen for the runs of p00 (process)"),
            ({"image": "plumbline:latest"}, "'plumbline:latest' is not an image pinned by its digest"),
            ({"image": IMAGE, "text": "numpy==2.4.6\n"}, "candidate: give either a lock or an image"),
            ({"text": "numpy==2.4.6\n"}, "unknown: nowhere"),
        ]:
            platforms = ("nowhere",) if "nowhere" in words else ()
            candidate = Candidate.model_validate(given)
            state = upgrade(suite=suite, candidate=candidate, platforms=platforms, return_state=True)
            assert state.name == "Misconfigured"
            assert words in str(state.message)
            assert "\n" not in str(state.message)
    assert workers.sent == []
