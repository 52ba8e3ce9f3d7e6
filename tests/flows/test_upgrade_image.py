"""An image as the candidate, on a real server with Kubernetes pools: what the workers are sent, and the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State

from plumbline.data.stores import open_store
from plumbline.flows.upgrade import upgrade
from plumbline.night.central import CentralStore
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.suite import Suite
from plumbline.upgrade.outcome import UpgradeOutcome, read_outcome
from plumbline.upgrade.request import Candidate
from tests.flows.conftest import Server
from tests.flows.stubs import Material, StubWorkers, deploy, suite_of

IMAGE = f"registry.example.com/team/plumbline:2026-11@sha256:{'c' * 64}"
GPU_TEMPLATE = Path(__file__).parents[2] / "infra/kubernetes/gpu-job-template.json"


class Pods(StubWorkers):
    """Workers that train in the image of each run's job variables; `evidence` is what the candidate's differs in."""

    def __init__(
        self, suite: Suite, server: Server, record: Path, folder: Path, evidence: dict[str, Any], *, obey: bool = True
    ) -> None:
        super().__init__(suite, server.api_url, record, folder / "work", measure=self._measured)
        self._evidence, self._obey = evidence, obey
        self._template = RunRecord.model_validate_json((record / RECORD_NAME).read_bytes())
        self._variables: dict[str, Any] = {}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def _run(self, client: SyncPrefectClient, run: FlowRun) -> None:
        # As the API returns it, not as it was scheduled.
        self._variables = client.read_flow_run(run.id).job_variables or {}
        self.sent.append((run.name, self._variables))
        super()._run(client, run)

    def _measured(self, _order: dict[str, Any]) -> dict[str, Any]:
        image = self._variables.get("env", {}).get("PLUMBLINE_IMAGE", "") if self._obey else ""
        packages = {**self._template.fingerprint.packages, "transformers": "5.0" if image else "4.0"}
        fingerprint = self._template.fingerprint.replace(container_image=image, packages=packages)
        return {**(self._evidence if image else {}), "record": {"fingerprint": fingerprint.to_json()}}


def kubernetes_suite(client: SyncPrefectClient, folder: Path, name: str, material: Material) -> Suite:
    suite = suite_of(folder, name, 1)
    template = json.loads(GPU_TEMPLATE.read_text(encoding="utf-8"))
    template["variables"]["properties"]["image"]["default"] = "registry.example.com/plumbline@sha256:0"
    pool = suite.platforms["p00"].work_pool
    client.create_work_pool(WorkPoolCreate(name=pool, type="kubernetes", base_job_template=template))
    deploy(suite)
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": material[0]})
    return suite


def play(suite: Suite, workers: Pods, **more: Any) -> tuple[UpgradeOutcome | None, State[Any]]:
    name = f"20261123-020000-{suite.name}"
    with workers:
        state = upgrade(suite=suite, round_id=name, candidate=Candidate(image=IMAGE), return_state=True, **more)
    return read_outcome(CentralStore(open_store(suite.store)), suite.name, name), state


def test_a_candidate_image_trains_beside_the_pool_s_own(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    suite = kubernetes_suite(client, tmp_path, "image-pass", material)
    workers = Pods(suite, server, material[1], tmp_path, {})
    outcome, state = play(suite, workers)
    assert (state.name, outcome.verdict, outcome.candidate) == ("Completed", "pass", IMAGE)
    assert [variables for _, variables in workers.sent] == [{}, {"image": IMAGE, "env": {"PLUMBLINE_IMAGE": IMAGE}}]
    assert [name.rpartition("tiny ")[2] for name, _ in workers.sent] == ["own image", "candidate image"]
    answer = outcome.platforms["p00"].answer
    assert (answer.image, answer.culprits) == (IMAGE, ())
    assert [str(change) for change in answer.changes] == ["transformers 4.0 → 5.0"]
    assert "bisecting is off: an image is one change" in answer.sentences


@pytest.mark.long
def test_a_drift_of_the_image_is_confirmed_by_a_repeat_of_the_own(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    suite = kubernetes_suite(client, tmp_path, "image-drift", material)
    probe = json.loads((material[1] / RECORD_NAME).read_bytes())["evidence"]["probe"]
    probe["learning_rates"] = [rate * 2 for rate in probe["learning_rates"]]
    workers = Pods(suite, server, material[1], tmp_path, {"probe": probe})
    outcome, state = play(suite, workers)
    assert (state.name, outcome.verdict, outcome.exit_code) == ("Drift", "drift", 1)
    assert [bool(variables) for _, variables in workers.sent] == [False, True, False]
    assert str(state.message).startswith("drift: p00: the candidate image changes schedule: first at step 0")
    assert "confirmed: the platform's own image agrees with itself" in str(state.message)


@pytest.mark.long
def test_a_pool_that_ignores_the_image_gives_no_pass(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    suite = kubernetes_suite(client, tmp_path, "image-ignored", material)
    outcome, state = play(suite, Pods(suite, server, material[1], tmp_path, {}, obey=False))
    assert (state.name, outcome.verdict) == ("Inconclusive", "inconclusive")
    assert "a training of the candidate image ran in an unnamed image" in str(state.message)


@pytest.mark.usefixtures("client")
def test_what_cannot_be_an_image_upgrade_is_refused_before_any_training(
    server: Server, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "image-refused", 1)
    deploy(suite)
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": material[0]})
    workers = Pods(suite, server, material[1], tmp_path, {})
    with workers:
        for candidate, words in [
            (Candidate(image=IMAGE), "candidate.image: no image can be chosen for the runs of p00 (process)"),
            (Candidate(image="plumbline:latest"), "'plumbline:latest' is not an image pinned by its digest"),
            (Candidate(image=IMAGE, text="numpy==2.4.6\n"), "candidate: give either a lock or an image"),
        ]:
            state = upgrade(suite=suite, candidate=candidate, return_state=True)
            assert state.name == "Misconfigured"
            assert words in str(state.message)
            assert "\n" not in str(state.message)
    assert workers.sent == []
