"""Is it the software? A slower night on a real server: reruns, then an A/B, whose answer the stub workers give.

`tests/train/test_ab.py` builds the environments of an A/B, and trains in them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.data.stores import open_store
from plumbline.flows.regression import regression
from plumbline.judge.history.metrics import row_of
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.central.series import extend_series, read_series
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.experiment import AbOrder
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.suite import Suite
from tests.flows.conftest import Server
from tests.flows.stubs import Material, StubWorkers, deploy_round, suite_of
from tests.said import said
from tests.unit.judge.test_speed import speed
from tests.unit.night.rounds.test_software import _evidence as ab_evidence

pytestmark = pytest.mark.long
PACKAGE = "plumbline-test-hook"
BEGIN = datetime(2026, 3, 1, 2, tzinfo=UTC)
PAST = 30


def _read(folder: Path) -> RunRecord:
    return RunRecord.model_validate_json((folder / RECORD_NAME).read_bytes())


def _earlier_nights(central: CentralStore, suite: Suite, record: RunRecord) -> None:
    rows = []
    for index, slower in enumerate(np.random.default_rng(7).normal(0, 0.005, PAST).tolist()):
        when = BEGIN - timedelta(days=PAST - index)
        evidence = record.evidence.replace(speed=speed(slower=slower).to_json()).to_json()
        changes = {"record_id": f"past-{index:02}", "round_id": f"past-{index:02}", "evidence": evidence}
        rows.append(row_of(record.replace(**changes, started_at=when, finished_at=when)))
    extend_series(central, suite.name, "p00", rows)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("ab_loss", "reason", "state_name"), [(0.15, "software", "Drift"), (0.0, "machine", "Inconclusive")]
)
def test_a_slower_night_is_the_softwares_only_if_the_ab_shows_it(  # noqa: PLR0917 - fixtures
    server: Server, material: Material, tmp_path: Path, ab_loss: float, reason: str, state_name: str
) -> None:
    suite = suite_of(tmp_path, f"ab-{reason}", 1).replace(
        dispatch={"quorum": 1, "experiments": 0, "reruns": 2, "ab_blocks": 5}
    )
    deploy_round(suite)
    central, packages = CentralStore(open_store(suite.store)), _read(material[1]).fingerprint.packages
    write_specs(central, suite, {"tiny": material[0]})

    def night(number: int, version: str, loss: float) -> tuple[str, str]:
        """Play a night in which the software has this version, and each training loses this share of its speed."""
        when, noise = BEGIN + timedelta(days=number), np.random.default_rng(11)

        def measured(order: dict[str, Any]) -> dict[str, Any]:
            times = {"started_at": when.isoformat(), "finished_at": (when + timedelta(minutes=9)).isoformat()}
            fingerprint = _read(material[1]).fingerprint.replace(packages={**packages, PACKAGE: version}).to_json()
            found = {"record": {**times, "fingerprint": fingerprint}}
            if order.get("ab"):
                found["ab"] = ab_evidence(AbOrder.model_validate(order["ab"]), ab_loss, blocks=5).to_json()
            return {**found, "speed": speed(slower=loss + float(noise.normal(0, 0.003))).to_json()}

        name = f"{when:%Y%m%d-%H%M%S}-{suite.name}"
        with StubWorkers(suite, server.api_url, material[1], tmp_path / f"work-{number}", measure=measured):
            state = regression(suite=suite, round_id=name, return_state=True)
        return name, str(state.name)

    first, _ = night(0, "1.0", 0.0)
    (name,) = central.get_round(suite.name, first).platforms["p00"].records
    accepted = _read(central.get_record(name, tmp_path / "accepted").folder)
    BaselineBook(central).accept(accepted)
    _earlier_nights(central, suite, accepted)
    later, state = night(1, "2.0", 0.15)
    assert state == state_name
    result = central.get_round(suite.name, later).platforms["p00"]
    series = read_series(central, suite.name, "p00")
    entry = next(call for call in reversed(series.calls) if call.metric == "throughput")
    finding = next(finding for finding in result.findings if finding.check == "history.throughput")
    assert (entry.reason, entry.verdict) == (reason, "drift" if reason == "software" else "inconclusive"), finding
    assert "A/B of 20 runs" in said(finding.detail)
    software = [(cause.sure, cause.suspects) for cause in result.causes if cause.code == "software"]
    wanted = [("confirmed", (f"{PACKAGE} 1.0 → 2.0",))] if reason == "software" else []
    assert software == wanted, result.causes
    assert len(series) == PAST + 2, "reruns and the A/B are not nights"
