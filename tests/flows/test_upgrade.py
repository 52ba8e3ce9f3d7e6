"""The flow of an upgrade on a real server: workers answer through outboxes, and only answers to the order count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Completed, Pending, Running

from plumbline.data.stores import open_store
from plumbline.environments.changes import PackageChange
from plumbline.environments.locks import LockFiles, Pin
from plumbline.flows.upgrade import gate, upgrade
from plumbline.night.central import CentralStore
from plumbline.night.deployment import REGRESSION
from plumbline.schema.digest import digest_bytes
from plumbline.schema.suite import Alert, Suite
from plumbline.upgrade.answer import Culprit, UpgradeAnswer
from plumbline.upgrade.orders import (
    PlatformReport,
    UpgradeOrder,
    fetch_lock,
    fetch_report,
    publish_lock,
    publish_report,
)
from plumbline.upgrade.orders import suite_of as suite_of_worker
from plumbline.upgrade.outcome import UpgradeOutcome, read_outcome
from plumbline.upgrade.request import Candidate
from tests.flows.conftest import Server
from tests.flows.stubs import StubWorkers, deploy, suite_of
from tests.flows.webhook_server import receiver

LOCK = "numpy==2.4.6\n"
CHANGE = PackageChange(
    package="numpy", current=Pin(name="numpy", version="2.4.5"), candidate=Pin(name="numpy", version="2.4.6")
)
CULPRIT = Culprit(
    effect="numerics", changes=(CHANGE,), sure="confirmed", sentence="numpy 2.4.5 → 2.4.6 changes operator; confirmed"
)

Reply = Callable[[UpgradeOrder], PlatformReport | None]
"""What a worker leaves in its outbox; `None` where it leaves nothing."""


class GateWorkers(StubWorkers):
    """Workers that answer upgrades without training."""

    def __init__(self, suite: Suite, server: Server, folder: Path, replies: dict[str, Reply]) -> None:
        super().__init__(suite, server.api_url, folder, folder / "work")
        self._replies = replies
        self.orders: list[UpgradeOrder] = []

    def _run(self, client: SyncPrefectClient, run: FlowRun) -> None:
        order = UpgradeOrder.model_validate(run.parameters["order"])
        self.ran.append(str(run.id))
        self.orders.append(order)
        for state in (Pending(), Running()):
            client.set_flow_run_state(run.id, state)
        outbox = open_store(order.outbox)
        assert fetch_lock(outbox, order.lock_sha256).files == {"requirements.txt": LOCK}
        if report := self._replies.get(order.platform, passes)(order):
            publish_report(outbox, report)
        client.set_flow_run_state(run.id, Completed(), force=True)


def report(order: UpgradeOrder, **more: Any) -> PlatformReport:
    return PlatformReport(record_id=order.record_id, platform=order.platform, nonce=order.nonce, **more)


def answer(order: UpgradeOrder, verdict: str, **more: Any) -> UpgradeAnswer:
    return UpgradeAnswer.model_validate({"verdict": verdict, "candidate_sha256": order.lock_sha256, **more})


def passes(order: UpgradeOrder) -> PlatformReport:
    return report(order, answer=answer(order, "pass", changes=(CHANGE,)))


def drifts(order: UpgradeOrder) -> PlatformReport:
    return report(
        order, answer=answer(order, "drift", changes=(CHANGE,), culprits=(CULPRIT,), constraints=("numpy==2.4.5",))
    )


def play(
    suite: Suite, server: Server, folder: Path, replies: dict[str, Reply], **more: Any
) -> tuple[UpgradeOutcome | None, State[Any], list[UpgradeOrder]]:
    name = f"20261120-020000-{suite.name}"
    with GateWorkers(suite, server, folder, replies) as workers:
        given = {"candidate": Candidate(text=LOCK), **more}
        state = upgrade(suite=suite, round_id=name, return_state=True, **given)
    return read_outcome(CentralStore(open_store(suite.store)), suite.name, name), state, workers.orders


def test_a_drift_on_one_platform_is_named_shown_and_alerted(
    client: SyncPrefectClient, server: Server, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "gate-drift", 2)
    with receiver("gate-drift") as webhook:
        suite = suite.replace(alerts=[Alert(on=("drift",), block="apprise-url/gate-drift")])
        deploy(suite)
        outcome, state, orders = play(suite, server, tmp_path, {"p01": drifts})
        # The same upgrade again: its answers are there already, and nobody is told twice.
        again, _, none = play(suite, server, tmp_path, {})
        (message,) = webhook.got
    assert (outcome.verdict, outcome.exit_code) == ("drift", 1)
    assert {name: one.verdict for name, one in outcome.platforms.items()} == {"p00": "pass", "p01": "drift"}
    assert (state.name, state.message) == ("Drift", f"drift: p01: {CULPRIT.sentence}")
    assert "drift of an upgrade on p01" in message["title"]
    assert CULPRIT.sentence in message["message"]
    assert "numpy==2.4.5" in message["message"]
    assert "numpy 2.4.5" in Path(outcome.pages["p01"].removeprefix("file://")).read_text(encoding="utf-8")
    key = ArtifactFilterKey(any_=["gate-drift-upgrade"])
    assert "changes operator" in str(client.read_artifacts(artifact_filter=ArtifactFilter(key=key))[0].data)
    assert (again.verdict, none) == ("drift", [])
    # A worker learns of its own platform alone, and of nobody's recipients.
    for order in orders:
        assert (list(order.suite.platforms), order.suite.alerts) == ([order.platform], ())


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_what_does_not_answer_the_order_counts_for_nothing(server: Server, tmp_path: Path) -> None:
    """Of a lock at a URL, whose digest was announced; without that digest no worker is asked."""
    (tmp_path / "lock.txt").write_text(LOCK)
    suite = suite_of(tmp_path, "gate-foreign", 4).replace(candidates=(f"file://{tmp_path}",))
    deploy(suite)
    replies: dict[str, Reply] = {
        "p00": lambda order: passes(order).replace(nonce="0" * 32),
        "p01": lambda order: report(order, answer=answer(order, "pass").replace(candidate_sha256="0" * 64)),
        "p02": lambda _: None,
    }
    candidate = Candidate(url=f"file://{tmp_path}/lock.txt", sha256="0" * 64)
    _, state, orders = play(suite, server, tmp_path, replies, candidate=candidate)
    assert (state.name, orders) == ("Misconfigured", [])
    candidate = candidate.replace(sha256=digest_bytes(LOCK.encode()))
    outcome, state, _ = play(suite, server, tmp_path, replies, candidate=candidate)
    verdicts = {name: one.verdict for name, one in outcome.platforms.items()}
    assert verdicts == {"p00": "inconclusive", "p01": "inconclusive", "p02": "inconclusive", "p03": "pass"}
    assert (outcome.verdict, outcome.exit_code, state.name) == ("inconclusive", 3, "Inconclusive")


@pytest.mark.first(1)
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(("code", "name"), [(2, "Misconfigured"), (4, "Invalid")])
def test_an_error_on_a_worker_is_the_upgrade_s(server: Server, tmp_path: Path, code: int, name: str) -> None:
    suite = suite_of(tmp_path, f"gate-error-{code}", 1)
    deploy(suite)
    replies: dict[str, Reply] = {"p00": lambda order: report(order, error="line 1 pins no version", exit_code=code)}
    outcome, state, _ = play(suite, server, tmp_path, replies)
    assert (state.name, outcome.exit_code) == (name, code)
    assert "line 1 pins no version" in str(state.message)


def test_an_event_without_a_lock_starts_a_round(client: SyncPrefectClient, tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "gate-none", 1)
    deploy(suite)
    state = upgrade(suite=suite, return_state=True)
    assert state.name == "Completed"
    assert "started the round" in str(state.message)
    deployed = client.read_deployment_by_name(f"{REGRESSION}/{suite.name}")
    started = client.read_flow_runs(deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployed.id])))
    assert [run.name in str(state.message) for run in started] == [True]


@pytest.mark.usefixtures("client")
def test_a_worker_whose_environment_is_not_its_lock_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suite_of(tmp_path, "gate-worker", 1)
    current, lock = "numpy==1.0\n", LockFiles(name="requirements.txt", files={"requirements.txt": LOCK})
    (tmp_path / "current.txt").write_text(current)
    monkeypatch.setenv("PLUMBLINE_LOCK", str(tmp_path / "current.txt"))
    monkeypatch.setenv("PLUMBLINE_CACHE", str(tmp_path / "cache"))
    order = UpgradeOrder(
        platform="p00", outbox=suite.platforms["p00"].outbox, record_id="gate-worker-0", upgrade_id="u", nonce="7" * 32,
        suite=suite_of_worker(suite, "p00", "tiny"), workload="tiny", lock_sha256=lock.digest, trials=9, seconds=60,
    )  # fmt: skip
    outbox = open_store(order.outbox)
    publish_lock(outbox, lock)
    state = gate(order.to_json(), return_state=True)
    found = fetch_report(outbox, order)
    assert (state.name, found.answer, found.exit_code) == ("Misconfigured", None, 2)
    assert "pins numpy 1.0, this environment holds" in found.error
    assert found.current_sha256 == digest_bytes(current.encode())
