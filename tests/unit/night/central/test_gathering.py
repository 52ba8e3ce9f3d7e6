"""States of gathered records, and the kinds of records by which dispatch decides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import ObjectInfo, ObjectMissingError, StoreUnavailableError
from plumbline.night.central import CentralStore, find_record, gather, publish_record
from plumbline.night.dispatch import RecordKind, TrainingOrder
from plumbline.schema.errors import UnavailableError
from plumbline.schema.record import RECORD_NAME, read_record
from tests.contract.records import make_record, orders_of
from tests.memory_store import MemoryStore


def make_order(folder: Path, **changes: Any) -> TrainingOrder:
    content = {
        "platform": "aws", "data": "file:///d", "outbox": "file:///o", "record_id": "record-1", "round_id": "round-1",
        "nonce": "secret", "spec": read_record(make_record(folder, "record-1", "aws")).spec, "run_seconds": 60,
    }  # fmt: skip
    return TrainingOrder.model_validate({**content, **changes})


def deliver(folder: Path, outbox: MemoryStore, **changes: Any) -> None:
    """Publish a record that answers the order of `make_order`, with changes."""
    path = make_record(folder, "record-1", "aws") / RECORD_NAME
    content = {**json.loads(path.read_bytes()), "round_id": "round-1", "nonce": "secret", **changes}
    path.write_text(json.dumps(content))
    publish_record(outbox, path.parent)


def test_without_expected_records_nothing_is_gathered(tmp_path: Path) -> None:
    assert gather({"aws": MemoryStore()}, {}, CentralStore(MemoryStore()), tmp_path) == {}


def test_the_record_of_its_order_is_complete_and_a_different_platforms_order_does_not_matter(tmp_path: Path) -> None:
    outbox, central = MemoryStore(), CentralStore(MemoryStore())
    deliver(tmp_path / "made", outbox)
    orders = {"aws": make_order(tmp_path / "order"), "azure": make_order(tmp_path / "second", nonce="other")}
    result = gather({"aws": outbox, "azure": MemoryStore()}, orders, central, tmp_path / "into")["aws"]
    assert (result.state, result.why) == ("complete", "")
    assert result.loaded is not None
    assert result.loaded.folder == tmp_path / "into/aws/record-1"
    assert central.list_records() == ["record-1"]


FAILED = {"status": "failed", "code": "unavailable", "message": "s3://data: no answer"}


def test_dispatch_learns_the_kind_of_a_record_and_why(tmp_path: Path) -> None:
    order = make_order(tmp_path / "order")
    cases: list[tuple[str, dict[str, Any], RecordKind, str]] = [
        ("completed", {}, RecordKind.COMPLETE, ""),
        ("infrastructure", {"exit": FAILED}, RecordKind.INFRASTRUCTURE, "s3://data: no answer"),
        ("silent", {"exit": {**FAILED, "message": ""}}, RecordKind.INFRASTRUCTURE, "unavailable"),
        ("labels", {"exit": {"status": "failed", "code": "labels", "message": "9"}}, RecordKind.COMPLETE, "9"),
    ]
    for name, changes, kind, why in cases:
        outbox = MemoryStore()
        deliver(tmp_path / name, outbox, **changes)
        recorded = find_record(outbox, order)
        assert (recorded.kind, recorded.why) == (kind, why), name
    assert find_record(MemoryStore(), order).kind is RecordKind.ABSENT


def test_dispatch_ends_the_wait_for_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    order = make_order(tmp_path / "order")
    outbox = MemoryStore()
    outbox.create("records/record-1/record.json", b"cut off {")
    recorded = find_record(outbox, order)
    assert recorded.kind is RecordKind.COMPLETE
    assert "memory://test/records/record-1/record.json" in recorded.why
    other = MemoryStore()
    publish_record(other, make_record(tmp_path / "made", "record-2", "aws"))
    with other.open("records/record-2/record.json") as reader:
        buffer = bytearray(reader.info.size)
        reader.readinto(memoryview(buffer))
    outbox.swap(
        "records/record-1/record.json", bytes(buffer), if_match=outbox.stat("records/record-1/record.json").etag
    )
    recorded = find_record(outbox, order)
    assert recorded.kind is RecordKind.FOREIGN
    assert "record-2" in recorded.why


class Broken(MemoryStore):
    """Store whose named operations fail."""

    error: Exception = StoreUnavailableError("no answer")
    failing: tuple[str, ...] = ()

    def list(self, prefix: str = "") -> Any:
        if "list" in self.failing:
            raise self.error
        return super().list(prefix)

    def open(self, key: str, **options: Any) -> Any:
        if "open" in self.failing:
            raise self.error
        return super().open(key, **options)

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        if "create" in self.failing:
            raise self.error
        return super().create(key, data)


def test_an_outbox_that_does_not_answer_is_unknown_to_dispatch(tmp_path: Path) -> None:
    outbox = Broken()
    outbox.failing = ("open",)
    with pytest.raises(StoreUnavailableError):
        find_record(outbox, make_order(tmp_path / "order"))


def test_an_outbox_whose_bucket_is_gone_is_unreachable_and_not_late(tmp_path: Path) -> None:
    outbox = Broken()
    outbox.failing, outbox.error = ("list",), ObjectMissingError("no such bucket")
    result = gather({"aws": outbox}, orders_of({"aws": "record-1"}), CentralStore(MemoryStore()), tmp_path)["aws"]
    assert (result.state, result.why) == ("unreachable", "no such bucket")


def test_what_lies_in_an_outbox_without_a_marker_is_counted_of_this_record_alone(tmp_path: Path) -> None:
    outbox = MemoryStore()
    for key in ("records/record-1/a", "records/record-1/b", "records/record-10/record.json", "records/record-10/a"):
        outbox.create(key, b"x")
    result = gather({"aws": outbox}, orders_of({"aws": "record-1"}), CentralStore(MemoryStore()), tmp_path)["aws"]
    assert (result.state, result.why) == ("partial", "2 parts without their record.json")
    assert (
        gather({"aws": outbox}, orders_of({"aws": "record-2"}), CentralStore(MemoryStore()), tmp_path)["aws"].state
        == "missing"
    )


def test_the_reason_names_what_differs(tmp_path: Path) -> None:
    outbox, central = MemoryStore(), CentralStore(MemoryStore())
    publish_record(outbox, make_record(tmp_path / "made", "record-1", "azure"))
    orders = orders_of({"aws": "record-1"})
    result = gather({"aws": outbox}, orders, central, tmp_path / "into")["aws"]
    assert result.why == "does not match this round's order: platform differ"
    assert find_record(outbox, orders["aws"]).kind is RecordKind.FOREIGN
    assert not (tmp_path / "into" / "aws").exists()


def test_a_central_store_that_cannot_be_written_ends_the_gathering(tmp_path: Path) -> None:
    """The fault is the controller's own; no platform may be called unavailable because of it."""
    outbox, store = MemoryStore(), Broken()
    publish_record(outbox, make_record(tmp_path / "made", "record-1", "aws"))
    store.failing, store.error = ("create",), UnavailableError("no answer")
    with pytest.raises(UnavailableError):
        gather({"aws": outbox}, orders_of({"aws": "record-1"}), CentralStore(store), tmp_path / "into")


def test_a_foreign_record_is_not_fetched_three_times(tmp_path: Path) -> None:
    class Counting(MemoryStore):
        opened = 0

        def open(self, key: str, **options: Any) -> Any:
            self.opened += 1
            return super().open(key, **options)

    outbox = Counting()
    made = make_record(tmp_path / "made", "record-2", "aws")
    outbox.create("records/record-1/record.json", made / RECORD_NAME)
    result = gather({"aws": outbox}, orders_of({"aws": "record-1"}), CentralStore(MemoryStore()), tmp_path / "into")[
        "aws"
    ]
    assert (result.state, outbox.opened) == ("foreign", 1)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("key", "size", "why"),
    [
        ("payload.bin", GIB, "'payload.bin' was not ordered"),
        ("capture.safetensors", GIB, "'capture.safetensors' was not ordered"),
        ("deep/rows.parquet", GIB, "'deep/rows.parquet' was not ordered"),
        ("batches.safetensors", GIB, "more than the"),
        ("state.safetensors", GIB, "more than the"),
    ],
)
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_part_that_nobody_ordered_is_neither_downloaded_nor_kept(
    tmp_path: Path, key: str, size: int, why: str, status: str
) -> None:
    """A record lists a part of 1 GiB that its order does not ask for, or that its spec does not explain."""
    read: list[str] = []

    class Outbox(MemoryStore):
        def open(self, key: str, *args: Any, **kwargs: Any) -> Any:
            read.append(key)
            return super().open(key, *args, **kwargs)

    outbox, central = Outbox(), CentralStore(MemoryStore())
    path = make_record(tmp_path / "made", "record-1", "aws") / RECORD_NAME
    content = {**json.loads(path.read_bytes()), "round_id": "round-1", "nonce": "secret"}
    content["parts"].append({"key": key, "size": size, "sha256": "0" * 64})
    content["exit"] = {"status": status}
    outbox.create("records/record-1/record.json", json.dumps(content).encode())
    order = make_order(tmp_path / "order")
    result = gather({"aws": outbox}, {"aws": order}, central, tmp_path / "into")["aws"]
    assert result.state == "corrupt"
    assert why in result.why
    assert set(read) <= {"records/record-1/record.json"}
    assert central.list_records() == []


def test_no_platform_takes_the_disk_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, central = MemoryStore(), CentralStore(MemoryStore())
    deliver(tmp_path / "made", outbox)
    into = tmp_path / "into"
    earlier = into / "aws" / "record-0"
    earlier.mkdir(parents=True)
    (earlier / "capture.safetensors").write_bytes(bytes(90))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("plumbline.night.central.gathering.shutil.disk_usage", lambda _: usage._replace(free=210))
    outboxes = {"aws": outbox, "azure": MemoryStore()}
    result = gather(outboxes, {"aws": make_order(tmp_path / "order")}, central, into)["aws"]
    assert result.state == "unreachable", "too little room is the controller's, and no platform's fault"
    assert "106 bytes of records in one round, more than the platform's share of 100" in result.why
    assert not (into / "aws" / "record-1").exists()
