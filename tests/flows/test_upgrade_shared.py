"""Platforms with the same drift share the trials of the search on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Pending, Running

from plumbline.central import CentralStore
from plumbline.flows.upgrade import upgrade
from plumbline.localstack.stack import Stack
from plumbline.schema.suite import Gates, Suite
from plumbline.stores import open_store
from plumbline.upgrade.candidate import Candidate
from plumbline.upgrade.gate import Parts, UpgradeGate
from plumbline.upgrade.orders import PlatformReport, UpgradeOrder, publish_report
from plumbline.upgrade.outcome import read_outcome
from plumbline.upgrade.sharing import SharedTrials
from plumbline.upgrade.trials import Trial, TrialResult
from tests.flows.stubs import StubWorkers, deploy, suite_of
from tests.unit.upgrade.conftest import Machine, changes

TRIAL_SECONDS = 2.0
NUM_CHANGES = 40
CULPRIT = "p025"


class SlowMachine(Machine):
    """Trains for some seconds, and notes when."""

    def __init__(self) -> None:
        super().__init__({"numerics": lambda names: "drift" if CULPRIT in names else "same"})
        self.spans: list[tuple[float, float]] = []

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        for trial in trials:
            began = time.monotonic()
            time.sleep(TRIAL_SECONDS if trial.part == "numerics" else 0.0)
            self.asked.append(trial)
            self.spans.append((began, time.monotonic()))
            yield self.answer(trial)


class SearchingWorkers(StubWorkers):
    """Workers that run the gate on a stub machine, all at once."""

    def __init__(self, suite: Suite, stack: Stack, folder: Path) -> None:
        super().__init__(suite, stack.api_url, folder, folder / "work")
        self.machines = {name: SlowMachine() for name in suite.platforms}
        self.said: dict[str, list[str]] = {name: [] for name in suite.platforms}

    def _run(self, _client: SyncPrefectClient, run: FlowRun) -> None:
        self.ran.append(str(run.id))
        threading.Thread(target=self._judge, args=(run,)).start()

    def _judge(self, run: FlowRun) -> None:
        order = UpgradeOrder.model_validate(run.parameters["order"])
        machine, say = self.machines[order.platform], self.said[order.platform].append
        with temporary_settings({PREFECT_API_URL: self._api_url}), get_client(sync_client=True) as client:
            for state in (Pending(), Running()):
                client.set_flow_run_state(run.id, state)
            outbox = open_store(order.outbox)
            shared = SharedTrials(machine, outbox, order.record_id, say=say) if order.shares else None
            gate = UpgradeGate(machine, Gates(), Parts(speed=False, inputs=False), say=say, sharing=shared)
            answer = gate.judge(changes(NUM_CHANGES)).replace(candidate_sha256=order.lock_sha256)
            about = {"record_id": order.record_id, "platform": order.platform, "nonce": order.nonce}
            publish_report(open_store(order.outbox), PlatformReport(answer=answer, **about))
            client.set_flow_run_state(run.id, Completed(), force=True)


@pytest.mark.usefixtures("client")
def test_the_trials_of_a_search_run_on_all_platforms_that_drift_alike(stack: Stack, tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "gate-shared", 3)
    deploy(suite)
    name = f"20261120-020000-{suite.name}"
    with SearchingWorkers(suite, stack, tmp_path) as workers:
        upgrade(suite=suite, round_id=name, candidate=Candidate(text="numpy==2.4.6\n"), return_state=True)
    outcome = read_outcome(CentralStore(open_store(suite.store)), suite.name, name)
    assert outcome is not None
    for one in outcome.platforms.values():
        assert one.answer is not None
        assert [[change.package for change in culprit.changes] for culprit in one.answer.culprits] == [[CULPRIT]]
        assert (one.answer.culprits[0].sure, one.answer.culprits[0].others) == ("confirmed", "pass")
    helped = {name: [one for one in machine.asked if one.name.startswith("help")] for name, machine in
              workers.machines.items()}  # fmt: skip
    helpers = {name for name, trials in helped.items() if trials}
    assert helpers, f"every platform searched alone: {[len(one.asked) for one in workers.machines.values()]} trials"
    (leader,) = helped.keys() - helpers
    answer = outcome.platforms[leader].answer
    assert answer is not None
    assert {line.worker for line in answer.trials if line.worker} == helpers
    assert any(f" on {name} with " in line for name in helpers for line in workers.said[leader])
    assert any(line.startswith(f"trial for {leader}: numerics") for name in helpers for line in workers.said[name])
    others = [span for name in helpers for span in workers.machines[name].spans]
    assert any(a < end and begin < b for a, b in workers.machines[leader].spans for begin, end in others)
