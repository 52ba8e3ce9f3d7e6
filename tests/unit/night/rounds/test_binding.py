"""Binding of records to orders and to the suite's machines."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.data.stores import open_store, read_bytes
from plumbline.night.central import CentralStore, find_record, publish_record
from plumbline.night.dispatch import RecordKind, Result
from plumbline.night.rounds import Assignment, Round
from plumbline.night.rounds.documents import round_secret, round_specs, write_specs
from plumbline.night.rounds.gathered import GatheredRecords, harvest
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.outcome import join, sum_up
from plumbline.night.rounds.plan import MAIN
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.spec import RunSpec
from plumbline.schema.verdict import RoundVerdict
from tests.contract.records import make_record
from tests.memory_store import MemoryStore
from tests.record_parts import parquet_of
from tests.said import said
from tests.unit.suites import suite_of

NAMES = ("aws", "azure", "gcp")
ROWS = parquet_of({"row_id": np.array([1]), "text": np.zeros(1, np.uint64), "label": np.zeros(1, np.uint64)})


class World:
    """One round with outboxes in memory; `deliver` acts as a worker."""

    def __init__(self, folder: Path, *, names: tuple[str, ...] = NAMES, **platform: Any) -> None:
        self.folder = folder
        self.outboxes = {name: MemoryStore(f"memory://{name}") for name in names}
        self.central = CentralStore(MemoryStore("memory://central"))
        self.spec = json.loads((make_record(folder / "model", "m", "m") / RECORD_NAME).read_bytes())["spec"]
        self.suite = suite_of(*names, recipe={"seed": 7, "probe": {"steps": 2}}, platform=platform)
        self.round = self.open("20261122-020000-abc")
        self._made = 0

    def open(self, round_id: str) -> Round:

        specs = {"w": RunSpec.model_validate(self.spec)}
        return Round(round_id, self.suite, specs, round_secret(self.central, self.suite.name, round_id))

    def deliver(self, name: str, *, outbox: str = "", **changes: Any) -> None:
        """Write the record of the order of `name`, with `changes`, into an outbox."""
        order = self.round.order(Assignment(name, "w", MAIN), 0)
        self._made += 1
        folder = make_record(self.folder / f"made-{self._made}", order.record_id, name, content=ROWS)
        content = json.loads((folder / RECORD_NAME).read_bytes())
        content |= {"round_id": order.round_id, "attempt": order.attempt, "nonce": order.nonce}
        for key, value in changes.items():
            content[key] = {**(content[key] or {}), **value} if isinstance(value, dict) else value
        if "spec" in changes:
            content["spec_sha256"] = RunSpec.model_validate(content["spec"]).digest
        (folder / RECORD_NAME).write_text(json.dumps(content), encoding="utf-8")
        publish_record(self.outboxes[outbox or name], folder)

    def gathered(self, now: datetime | None = None) -> GatheredRecords:
        results = {Assignment(name, "w", MAIN): Result(0) for name in self.outboxes}
        return harvest(self.round, results, self.outboxes, self.central, self.folder / "into", now=now)

    def verdict(self) -> RoundVerdict:
        result = self.gathered()
        results = judge_harvest(self.round, result, {}, {}, {})
        return sum_up(self.round, {name: join({"w": results["w"][name]}) for name in self.suite.platforms})

    def kind(self, name: str) -> RecordKind:
        return find_record(self.outboxes[name], self.round.order(Assignment(name, "w", MAIN), 0)).kind


def test_each_record_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing is most of the controller's work on a large fleet."""
    world, parsed, parse = World(tmp_path), [], RunRecord.model_validate_json

    def counted(data: bytes) -> RunRecord:
        parsed.append(record := parse(data))
        return record

    for name in NAMES:
        world.deliver(name)
    monkeypatch.setattr(RunRecord, "model_validate_json", counted)
    assert sorted(world.gathered().of("w")) == sorted(NAMES)
    assert sorted(record.platform for record in parsed) == sorted(NAMES)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nonce": ""}, "nonce"),
        ({"nonce": "0" * 32}, "nonce"),
        ({"round_id": "20261121-020000-abc"}, "round_id"),
        ({"attempt": 1}, "attempt"),
        ({"platform": "gcp"}, "platform"),
        ({"spec": {"seed": 8}}, "spec_sha256"),
        ({"experiment": {"experiment_id": "x1", "steps": 1}}, "experiment"),
    ],
)
def test_a_record_that_answers_another_order_is_invalid_and_is_not_kept(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    world = World(tmp_path)
    for name in NAMES:
        world.deliver(name, **(changes if name == "azure" else {}))
    assert world.kind("azure") is RecordKind.FOREIGN
    result = world.gathered()
    azure = result.absent[Assignment("azure", "w", MAIN)]
    assert azure.broken
    assert field in said(azure.why)
    assert sorted(result.of("w")) == ["aws", "gcp"]
    assert not any("azure" in name for name in world.central.list_records())


NOW = datetime(2026, 11, 22, 2, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("started", "finished"),
    [
        ("2020-01-01T02:01:00Z", "2020-01-01T02:20:00Z"),
        ("2026-11-21T01:59:00Z", "2026-11-21T02:20:00Z"),
        ("2026-11-15T02:01:00Z", "2026-11-22T02:20:00Z"),
        ("2026-11-22T02:01:00Z", "2026-11-23T02:31:00Z"),
        ("2026-11-22T02:20:00Z", "2026-11-22T02:01:00Z"),
        ("2100-01-01T02:01:00Z", "2100-01-01T02:20:00Z"),
    ],
)
def test_a_record_whose_times_are_not_within_the_round_is_invalid(tmp_path: Path, started: str, finished: str) -> None:
    world = World(tmp_path)
    honest = {"started_at": "2026-11-22T02:01:00Z", "finished_at": "2026-11-22T02:20:00Z"}
    for name in NAMES:
        world.deliver(name, **(honest | ({"started_at": started, "finished_at": finished} if name == "azure" else {})))
    result = world.gathered(NOW)
    azure = result.absent[Assignment("azure", "w", MAIN)]
    assert (azure.broken, azure.check) == (True, "record.time")
    assert f"was trained from {started[:10]} {started[11:16]} to {finished[:10]} {finished[11:16]} UTC" in said(
        azure.why
    )
    assert sorted(result.of("w")) == ["aws", "gcp"]


def test_a_clock_that_is_minutes_off_and_a_round_that_waited_in_a_queue_are_judged(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.deliver("aws", started_at="2026-11-22T01:40:00Z", finished_at="2026-11-22T01:59:00Z")
    world.deliver("azure", started_at="2026-11-22T09:01:00+01:00", finished_at="2026-11-22T10:20:00Z")
    world.deliver("gcp", started_at="2026-11-22T09:59:00Z", finished_at="2026-11-22T10:39:00Z")
    assert sorted(world.gathered(datetime(2026, 11, 22, 10, 30, tzinfo=UTC)).of("w")) == list(NAMES)


def test_a_rounds_name_in_the_controllers_future_makes_no_record_invalid(tmp_path: Path) -> None:
    """A person may name a round as they like; its records are of now."""
    world = World(tmp_path)
    world.round = world.open("20991231-020000-abc")
    for name in NAMES:
        world.deliver(name, started_at="2026-11-22T02:01:00Z", finished_at="2026-11-22T02:20:00Z")
    assert sorted(world.gathered(NOW).of("w")) == list(NAMES)


def test_last_nights_records_under_tonights_names_do_not_pass(tmp_path: Path) -> None:
    """Each night has a secret of its own: who kept a record cannot know the nonce of the next order."""
    world = World(tmp_path)
    tonight = world.round
    world.round = world.open("20261121-020000-abc")
    nonces = {name: world.round.order(Assignment(name, "w", MAIN), 0).nonce for name in NAMES}
    world.round = tonight
    for name in NAMES:
        world.deliver(name, nonce=nonces[name])
    assert world.verdict().verdict == "invalid"
    assert world.gathered().records == {}


def test_a_controller_that_starts_again_asks_for_the_same_nonces_and_each_order_has_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    again = world.open(world.round.id)
    orders = [world.round.order(Assignment(name, "w", MAIN), attempt) for name in NAMES for attempt in (0, 1)]
    assert [again.order(Assignment(order.platform, "w", MAIN), order.attempt).nonce for order in orders] == [
        order.nonce for order in orders
    ]
    assert len({order.nonce for order in orders}) == len(orders)
    assert world.open("20261123-020000-abc").order(Assignment("aws", "w", MAIN), 0).nonce != orders[0].nonce


def test_the_published_folder_of_a_round_holds_no_secret(tmp_path: Path) -> None:
    world = World(tmp_path)
    secret = world.round.secret
    for name in NAMES:
        world.deliver(name)
    world.central.put_round(world.verdict())
    published = [info.key for info in world.central.store.list("") if info.key.startswith(("rounds/", "records/"))]
    assert {key.partition("/")[0] for key in published} == {"rounds", "records"}
    assert not any(secret.encode() in read_bytes(world.central.store, key) for key in published)
    assert not any(key.endswith("secret") for key in published)


def test_the_secret_of_a_round_is_its_users_alone_in_a_folder_that_others_may_read(tmp_path: Path) -> None:
    """A web server, or a second controller's group, may read the folder; the nonces derive from the secret."""
    before = os.umask(0o022)
    try:
        central = CentralStore(open_store(f"file://{tmp_path}/central"))
        round_secret(central, "nightly", "r")
        central.put_text("secrets/nightly/r", "1" * 64)
        central.put_text("rounds/nightly/r/report.html", "a report")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "central").rglob("*") if path.is_file()}
    assert (modes["r"], modes["report.html"]) == (0o600, 0o644)


def test_a_secret_that_was_damaged_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    key = f"secrets/{world.suite.name}/{world.round.id}"
    world.central.put_text(key, "short")
    with pytest.raises(InvalidInputError, match="not a secret"):
        round_secret(world.central, world.suite.name, world.round.id)


def test_a_reference_with_another_spec_does_not_make_the_honest_platforms_invalid(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.deliver("aws", spec={"seed": 8})
    world.deliver("azure")
    world.deliver("gcp")
    result = world.gathered()
    assert sorted(result.of("w")) == ["azure", "gcp"]
    results = judge_harvest(world.round, result, {}, {}, {})["w"]
    assert results["aws"].verdict == "invalid"
    assert not any("spec" in finding.check for name in ("azure", "gcp") for finding in results[name].findings)
    assert any("compared with azure" in said(note.text) for note in results["gcp"].notes)


def test_one_platforms_outbox_decides_nothing_for_another(tmp_path: Path) -> None:
    """Who holds azure's key writes a record of gcp there, and one of azure with a nonce that is not azure's."""
    world = World(tmp_path)
    for name in NAMES:
        if name != "azure":
            world.deliver(name)
    world.deliver("gcp", outbox="azure")
    gcp = world.round.order(Assignment("gcp", "w", MAIN), 0)
    world.deliver("azure", nonce=gcp.nonce)
    result = world.gathered()
    assert sorted(result.of("w")) == ["aws", "gcp"]
    assert [item.platform for item in result.absent] == ["azure"]


GPU = {"name": "NVIDIA A10G", "uuid": "GPU-1", "memory_bytes": 1}


@pytest.mark.parametrize(
    ("expected", "fingerprint", "words"),
    [
        ({"accelerator": "NVIDIA A10G"}, {}, "accelerator: found cpu (x), the suite requires NVIDIA A10G"),
        (
            {"accelerator": "NVIDIA A10"},
            {"gpus": [GPU]},
            "accelerator: found NVIDIA A10G, the suite requires NVIDIA A10",
        ),
        ({"accelerator": "cpu"}, {"gpus": [GPU]}, "accelerator: found NVIDIA A10G, the suite requires cpu"),
        (
            {"accelerator": "A10"},
            {"gpus": [GPU]},
            "accelerator: found NVIDIA A10G, the suite requires A10 (NVIDIA A10 or NVIDIA A10-24Q",
        ),
        ({"accelerator": "NVIDIA A10G", "gpus": 2}, {"gpus": [GPU], "num_processes": 2}, "gpus: found 1"),
        ({"gpus": 2}, {"gpus": [GPU, GPU]}, "gpus: found 1 processes, the suite requires 2"),
        ({"gpus": 2, "nodes": 2}, {"num_processes": 2}, "gpus: found 2 processes, the suite requires 4"),
        ({"gpus": 1}, {"num_processes": 2}, "gpus: found 2 processes, the suite requires 1"),
        ({"lock": "e" * 64}, {}, "lock: found no lock, the suite requires eeee"),
        ({"lock": "e" * 64}, {"lock_sha256": "d" * 64}, "lock: found dddd"),
    ],
)
def test_a_record_of_another_machine_is_invalid_and_says_what_was_found(
    tmp_path: Path, expected: dict[str, Any], fingerprint: dict[str, Any], words: str
) -> None:
    world = World(tmp_path, **expected)
    for name in NAMES:
        world.deliver(name, fingerprint=fingerprint)
    verdict = world.verdict()
    assert verdict.verdict == "invalid"
    finding = verdict.platforms["azure"].findings[0]
    assert finding.check == f"platform.{words.partition(':')[0]}"
    assert words in said(finding.detail)


@pytest.mark.parametrize(
    ("expected", "fingerprint"),
    [
        ({"accelerator": "cpu"}, {}),
        ({"accelerator": "NVIDIA A10G"}, {"gpus": [GPU, {**GPU, "name": "NVIDIA T400"}]}),
        ({"accelerator": "NVIDIA A10G", "gpus": 2}, {"gpus": [GPU, GPU], "num_processes": 2}),
        ({"accelerator": "NVIDIA A10G", "nodes": 2}, {"gpus": [GPU], "num_processes": 2}),
        ({"accelerator": "A10"}, {"gpus": [{**GPU, "name": "NVIDIA A10-24Q"}]}),
        ({"lock": "e" * 64}, {"lock_sha256": "e" * 64}),
        ({}, {"gpus": [GPU]}),
    ],
)
def test_a_record_of_the_machine_that_the_suite_names_is_judged(
    tmp_path: Path, expected: dict[str, Any], fingerprint: dict[str, Any]
) -> None:
    world = World(tmp_path, **expected)
    for name in NAMES:
        world.deliver(name, fingerprint=fingerprint)
    assert sorted(world.gathered().of("w")) == list(NAMES)


FAILED = {"status": "failed", "code": "unavailable", "message": "s3://data: no answer within 32 s"}


@pytest.mark.parametrize("failed", ["aws", "azure"])
def test_an_infrastructure_failure_is_inconclusive_and_touches_no_other_platform(tmp_path: Path, failed: str) -> None:
    world = World(tmp_path)
    for name in NAMES:
        world.deliver(name, **({"exit": FAILED} if name == failed else {}))
    assert world.kind(failed) is RecordKind.INFRASTRUCTURE
    results_found = world.gathered()
    result = judge_harvest(world.round, results_found, {}, {}, {})["w"][failed]
    assert (result.verdict, result.unavailable) == ("inconclusive", "unavailable: s3://data: no answer within 32 s")
    assert failed not in results_found.of("w")
    # It is kept all the same: what ended the training is in it.
    assert any(failed in name for name in world.central.list_records())


def test_a_round_keeps_the_specs_of_its_first_start(tmp_path: Path) -> None:
    """A suite that was published meanwhile ended a resumed round as misconfigured."""
    world = World(tmp_path)
    first = RunSpec.model_validate(world.spec)
    fits = {name: getattr(first, name) for name in ("seed", "batch_size", "task", "optimizer", "schedule", "probe")}
    workload = world.suite.workloads["w"].replace(**fits)
    suite, later = (world.suite.replace(workloads={"w": each}) for each in (workload, workload.replace(seed=8)))
    write_specs(world.central, suite, {"w": first})
    assert round_specs(world.central, suite, "night-1") == {"w": first}
    write_specs(world.central, later, {"w": first.replace(seed=8)})
    assert round_specs(world.central, suite, "night-1") == {"w": first}
    assert round_specs(world.central, later, "night-2") == {"w": first.replace(seed=8)}
    with pytest.raises(ConfigurationError, match="the suite differs from the published spec: seed"):
        round_specs(world.central, suite, "night-3")
