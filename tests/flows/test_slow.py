"""Slow night on a real server: an independent rerun decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import open_store
from plumbline.flows.regression import regression
from plumbline.local.stack import Stack
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.record import RunRecord
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from tests.flows.stubs import Material, Measurement, StubWorkers, deploy_round, suite_of
from tests.said import said
from tests.unit.judge.test_speed import SLOW, speed


def night(
    number: int, suite: Suite, stack: Stack, material: Material, folder: Path, *, measure: Measurement
) -> tuple[RoundVerdict, str]:
    spec, record = material
    name = f"2026112{number}-020000-{suite.name}"
    workers = StubWorkers(suite, stack.api_url, record, folder / "work", measure=measure)
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": spec})
    with workers:
        state = regression(suite=suite, round_id=name, return_state=True)
    return CentralStore(open_store(suite.store)).get_round(suite.name, name), str(state.name)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("lasts", [True, False], ids=["lasts", "passes"])
def test_a_drop_is_drift_only_if_an_independent_rerun_shows_it(
    stack: Stack, material: Material, tmp_path: Path, lasts: bool
) -> None:
    suite = suite_of(tmp_path, f"slow-{lasts}".lower(), 2)
    deploy_round(suite)
    central = CentralStore(open_store(suite.store))
    before, _ = night(0, suite, stack, material, tmp_path, measure=lambda _: {"speed": speed().to_json()})
    for platform in before.platforms.values():
        folder = central.get_record(platform.records[0], tmp_path / "accepted" / platform.records[0]).folder
        BaselineBook(central).accept(RunRecord.model_validate_json((folder / "record.json").read_bytes()))

    def measure(order: dict[str, Any]) -> dict[str, Any]:
        slow = order["platform"] == "p01" and (lasts or "rerun" not in order["record_id"])
        return {"speed": speed(**SLOW["software"] if slow else {}).to_json()}

    verdict, state = night(1, suite, stack, material, tmp_path, measure=measure)
    p00, p01 = verdict.platforms["p00"], verdict.platforms["p01"]
    assert [len(item.records) for item in (p00, p01)] == [1, 2]
    assert (verdict.verdict, state) == (("drift", "Drift") if lasts else ("pass", "Completed"))
    assert p00.verdict == "pass"
    (finding,) = [item for item in p01.findings if item.check == "speed.throughput"]
    assert "rerun" in said(finding.detail)
    assert [(cause.code, cause.sure) for cause in p01.causes] == (
        # The machine ran the same software as its accepted record.
        [("unattributed", "unattributed")] if lasts else []
    )
