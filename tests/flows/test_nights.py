"""Nights on a real server: a creep, a refused accept, and a blind judge."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.cli.main import main
from plumbline.data.stores import open_store
from plumbline.flows.regression import regression
from plumbline.judge import compared
from plumbline.judge.history.metrics import row_of
from plumbline.judge.pair import Pair
from plumbline.judge.walk import Walk
from plumbline.night.alerts import AlertBook
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.central.series import extend_series, read_series
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from tests.flows.conftest import Server
from tests.flows.small_suite import to_toml
from tests.flows.stubs import Material, StubWorkers, deploy_round, suite_of
from tests.unit.judge.test_speed import speed

BEGIN = datetime(2026, 3, 1, 2, tzinfo=UTC)
PAST, CREPT = 40, 6


def nightly(tmp_path: Path, name: str) -> Suite:
    base = suite_of(tmp_path, name, 1).model_dump(mode="json", exclude_none=True)
    alerts = [{"on": ["drift", "invalid"], "block": "slack-webhook/nobody", "reminder_hours": 10_000}]
    return Suite.model_validate({**base, "dispatch": {"quorum": 1, "experiments": 0}, "alerts": alerts})


def earlier_nights(suite: Suite, material: Material, values: list[float]) -> None:
    """Write past nights into the series, like earlier rounds."""
    record = RunRecord.model_validate_json((material[1] / RECORD_NAME).read_bytes())
    rows = []
    for index, slower in enumerate(values):
        evidence = record.evidence.replace(speed=speed(slower=slower).to_json())
        when = BEGIN + timedelta(days=index)
        changes = {"record_id": f"past-{index:03d}", "platform": "p00", "round_id": f"past-{index:03d}"}
        row = row_of(record.replace(**changes, started_at=when, finished_at=when, evidence=evidence.to_json()))
        assert row is not None
        rows.append(row)
    extend_series(CentralStore(open_store(suite.store)), suite.name, "p00", rows)


def night(  # noqa: PLR0917 - one round, fully described
    index: int, suite: Suite, server: Server, material: Material, folder: Path, slower: Callable[[bool], float]
) -> tuple[RoundVerdict, str]:
    """Run one round; `slower` returns the loss of a run, or of a rerun."""
    when = BEGIN + timedelta(days=index)
    name = f"{when:%Y%m%d-%H%M%S}-{suite.name}"

    def measure(order: dict[str, Any]) -> dict[str, Any]:
        loss = slower("rerun" in order["record_id"])
        times = {"started_at": when.isoformat(), "finished_at": (when + timedelta(minutes=9)).isoformat()}
        return {"speed": speed(slower=loss).to_json(), "record": times}

    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": material[0]})
    with StubWorkers(suite, server.api_url, material[1], folder / "work", measure=measure):
        state = regression(suite=suite, round_id=name, return_state=True)
    return CentralStore(open_store(suite.store)).get_round(suite.name, name), str(state.name)


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_creep_fails_the_flow_alerts_once_and_cannot_be_accepted(
    server: Server, material: Material, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = nightly(tmp_path, "creep")
    deploy_round(suite)
    noise = np.random.default_rng(8).normal(0, 0.005, PAST + CREPT)
    # Its software is equal every night: the machine's loss is drift beyond the suite's limit of 5%.
    crept = 0.02 * np.maximum(np.arange(PAST + CREPT + 1) - PAST + 1, 0)
    earlier_nights(suite, material, (noise + crept[: PAST + CREPT]).tolist())
    central = CentralStore(open_store(suite.store))
    first, second = PAST + CREPT, PAST + CREPT + 1
    verdict, state = night(first, suite, server, material, tmp_path, lambda _: float(crept[first]))
    assert (verdict.verdict, state) == ("drift", "Drift")
    path = tmp_path / "creep.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)))
    capsys.readouterr()
    assert main(["baseline", "accept", str(path)]) == 2
    assert "is drift, not a pass, and cannot be approved" in capsys.readouterr().err
    assert BaselineBook(central).list() == ((), {})
    later, state = night(second, suite, server, material, tmp_path, lambda _: float(crept[first]))
    assert (later.verdict, state) == ("pass", "Completed")
    known = next(item for item in later.platforms["p00"].findings if item.check == "history.throughput")
    assert "still open" in known.detail
    pending = AlertBook(central, suite.name).read().pending
    assert [item.event for item in pending] == ["drift"]
    # The creep began on 10 April; the drift is dated to it within a few nights.
    assert any(f"since 2026-04-{day:02d}" in pending[0].body for day in range(8, 15)), pending[0].body
    finding = next(item for item in verdict.platforms["p00"].findings if item.check == "history.throughput")
    assert finding.outcome == "drift"
    # Reruns are not nights: one row for each round.
    assert len(read_series(central, suite.name, "p00")) == PAST + CREPT + 2


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_blind_judge_is_caught_by_the_canary(
    server: Server, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = nightly(tmp_path, "blind")
    deploy_round(suite)
    verdict, state = night(0, suite, server, material, tmp_path, lambda _: 0.0)
    assert (verdict.verdict, state) == ("pass", "Completed")
    assert verdict.proven.endswith("4 of 4 planted faults found")

    def blind(_pair: Pair) -> Walk:
        return Walk(mismatches=(), rounding=())

    monkeypatch.setattr(compared, "walk", blind)
    verdict, state = night(1, suite, server, material, tmp_path, lambda _: 0.0)
    assert (verdict.verdict, state) == ("invalid", "Invalid")
    checks = {finding.check for finding in verdict.platforms["p00"].findings if finding.outcome == "invalid"}
    assert checks == {"canary.weights", "canary.batches", "canary.layer-norm-eps"}
