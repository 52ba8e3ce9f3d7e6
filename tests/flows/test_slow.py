"""Slow night on a real server: an independent rerun decides."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import open_store
from plumbline.flows.regression import regression
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.machines.aws import AutoScalingGroup
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.spec import RunSpec, read_spec
from plumbline.schema.step_log import StepLog
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from tests.flows.conftest import Server
from tests.flows.small_suite import small_suite
from tests.flows.stubs import Measurement, StubWorkers, deploy_round, model_record, suite_of
from tests.said import said
from tests.scaling_group import scaling_group
from tests.unit.judge.test_speed import SLOW, speed

SPEED = {"steps": 10}
"""With the default `speed.checks`, which a rerun leaves out."""
KEPT = {"steps", "warmup_steps", "proofs", "portable", "production", *StepLog.model_fields}


@dataclass(frozen=True)
class Trained:
    """Records of real trainings with a throughput run: of a night, and of its ordered rerun."""

    spec: RunSpec
    record: Path
    rerun: Path

    def measured(self, order: dict[str, Any], *, slower: bool) -> dict[str, Any]:
        """Return what the ordered training recorded of its throughput run, with other times."""
        folder = self.rerun if "rerun" in order["record_id"] else self.record
        own = json.loads((folder / RECORD_NAME).read_bytes())["evidence"]["speed"]
        times = speed(**SLOW["software"] if slower else {}).to_json()
        return {"speed": own | {name: value for name, value in times.items() if name not in KEPT}}


@pytest.fixture(scope="module")
def trained(material_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    spec = read_spec(material_folder / "model/spec.json").replace(speed=SPEED)
    data, folder = small_suite(material_folder, platforms=("onprem",)).platforms["onprem"].data, tmp_path_factory
    records = [model_record(each, data, folder.mktemp("trained")) for each in (spec, spec.speed_alone)]
    return Trained(spec, *records)


def night(
    number: int, suite: Suite, server: Server, trained: Trained, folder: Path, *, measure: Measurement
) -> tuple[RoundVerdict, str]:
    name = f"2026112{number}-020000-{suite.name}"
    workers = StubWorkers(suite, server.api_url, trained.record, folder / "work", measure=measure, rerun=trained.rerun)
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": trained.spec})
    with workers:
        state = regression(suite=suite, round_id=name, return_state=True)
    return CentralStore(open_store(suite.store)).get_round(suite.name, name), str(state.name)


@pytest.mark.long
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("lasts", [True, False], ids=["lasts", "passes"])
def test_a_drop_is_drift_only_if_an_independent_rerun_shows_it(
    server: Server, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lasts: bool
) -> None:
    content = suite_of(tmp_path, f"slow-{lasts}".lower(), 2).model_dump(mode="json", exclude_none=True)
    content["workloads"]["tiny"]["speed"] = SPEED
    suite = Suite.model_validate(content)
    deploy_round(suite)
    central = CentralStore(open_store(suite.store))
    before, _ = night(0, suite, server, trained, tmp_path, measure=lambda order: trained.measured(order, slower=False))
    for platform in before.platforms.values():
        folder = central.get_record(platform.records[0], tmp_path / "accepted" / platform.records[0]).folder
        BaselineBook(central).accept(RunRecord.model_validate_json((folder / "record.json").read_bytes()))

    def measure(order: dict[str, Any]) -> dict[str, Any]:
        slow = order["platform"] == "p01" and (lasts or "rerun" not in order["record_id"])
        if order["platform"] == "p01":
            time.sleep(3)  # the last to end: nothing else stops its machines
        return trained.measured(order, slower=slow)

    with scaling_group(monkeypatch):
        p01, sizes, resize = (
            suite.platforms["p01"].replace(machines="aws://eu-west-1/gpus"),
            [],
            AutoScalingGroup.resize,
        )
        monkeypatch.setattr(AutoScalingGroup, "resize", lambda group, size: (sizes.append(size), resize(group, size)))
        on_machines = suite.replace(platforms={**suite.platforms, "p01": p01})
        verdict, state = night(1, on_machines, server, trained, tmp_path, measure=measure)
    # Down while the round judges, and up again for the rerun that it asks for.
    assert [size for size, _ in groupby(sizes)] == [1, 0, 1, 0]
    assert verdict.platforms["p01"].waited_seconds is not None
    page = Path(verdict.report).read_text(encoding="utf-8")
    assert "Machines that a round starts" in page
    assert " waited" in page
    p00, p01 = verdict.platforms["p00"], verdict.platforms["p01"]
    assert [len(item.records) for item in (p00, p01)] == [1, 2]
    assert (verdict.verdict, state) == (("drift", "Drift") if lasts else ("pass", "Completed"))
    assert p00.verdict == "pass"
    (finding,) = [item for item in p01.findings if item.check == "speed.throughput"]
    assert "rerun" in said(finding.detail)
    assert not [note for note in p01.notes if "does not count" in said(note.text)]
    assert [(cause.code, cause.sure) for cause in p01.causes] == (
        # The machine ran the same software as its accepted record.
        [("unattributed", "unattributed")] if lasts else []
    )
