"""Transport of records: atomic, verified at every step, with a state for each problem."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import (
    ObjectMissingError,
    Store,
    StoreUnavailableError,
    read_bytes,
)  # fmt: skip
from plumbline.night.central import CentralStore, fetch_record, gather, publish_record
from plumbline.schema.errors import CorruptDataError, InvalidInputError, UnavailableError
from plumbline.schema.record import read_record
from plumbline.schema.verdict import RoundVerdict
from tests.contract.records import make_record, orders_of
from tests.memory_store import BreakingStore, MemoryStore
from tests.unit.night.central.test_outbox import content


def same_tree(one: Path, other: Path) -> bool:
    return content(one) == content(other)


def test_the_marker_is_written_last(tmp_path: Path) -> None:
    """Whichever write fails, no marker exists without its parts."""

    record = make_record(tmp_path / "made", "record-1", "aws")
    parts = len(read_record(record).parts)
    store = BreakingStore()
    for left in range(parts + 1):
        store.left = left
        with pytest.raises(UnavailableError):
            publish_record(store, record)
        with pytest.raises(ObjectMissingError):
            fetch_record(store, "record-1", tmp_path / "into")
    store.left = parts + 1
    publish_record(store, record)
    assert same_tree(fetch_record(store, "record-1", tmp_path / "into").folder, record)


def test_a_record_is_never_replaced(tmp_path: Path) -> None:
    store = MemoryStore()
    publish_record(store, make_record(tmp_path / "one", "record-1", "aws"))
    with pytest.raises(InvalidInputError, match="different bytes"):
        publish_record(store, make_record(tmp_path / "two", "record-1", "aws", content=b"others"))


def test_a_damaged_folder_is_not_published(tmp_path: Path) -> None:
    record = make_record(tmp_path / "made", "record-1", "aws")
    (record / "rows.parquet").write_bytes(b"x")
    store = MemoryStore()
    with pytest.raises(CorruptDataError):
        publish_record(store, record)
    assert list(store.list()) == []


def spoil(store: Store, key: str, change: Callable[[dict[str, object]], None]) -> None:
    """Damage the record in an outbox."""
    with store.open(key) as reader:
        buffer = bytearray(reader.info.size)
        reader.readinto(memoryview(buffer))
    made = json.loads(buffer)
    change(made)
    store.swap(key, json.dumps(made).encode(), if_match=store.stat(key).etag)


class Unreachable(MemoryStore):
    """An outbox behind a link that is down."""

    def open(self, *_: object, **__: object) -> object:  # type: ignore[override]
        raise StoreUnavailableError("no answer", where=self.url)


def test_gather_tells_everything_apart_and_heals_by_itself(tmp_path: Path) -> None:
    names = ["good", "late", "partial", "other-platform", "other-id", "spoiled", "malformed", "no-part", "down"]
    outboxes: dict[str, Store] = {name: MemoryStore(f"memory://{name}") for name in names}
    outboxes["down"] = Unreachable()
    expected = {name: f"record-{name}" for name in names}
    folders = {name: make_record(tmp_path / "made" / name, f"record-{name}", name) for name in names}
    for name in ("good", "spoiled", "malformed", "no-part", "other-id"):
        publish_record(outboxes[name], folders[name])
    outboxes["partial"].create("records/record-partial/rows.parquet", b"x")
    publish_record(
        outboxes["other-platform"], make_record(tmp_path / "made/elsewhere", "record-other-platform", "elsewhere")
    )
    swap_in(outboxes["spoiled"], "records/record-spoiled/rows.parquet", b"spoiled content!")
    spoil(outboxes["other-id"], "records/record-other-id/record.json", lambda made: made.update(record_id="another"))
    swap_in(outboxes["malformed"], "records/record-malformed/record.json", b'{"schema_version": 1, "loss": NaN}')
    swap_in(outboxes["no-part"], "records/record-no-part/rows.parquet", None)

    central = CentralStore(MemoryStore("memory://central"))
    result = gather(outboxes, orders_of(expected), central, tmp_path / "into")
    assert {name: entry.state for name, entry in result.items()} == {
        "good": "complete", "late": "missing", "partial": "partial", "other-platform": "foreign",
        "other-id": "foreign", "spoiled": "corrupt", "malformed": "corrupt", "no-part": "corrupt",
        "down": "unreachable",
    }  # fmt: skip
    assert all(entry.why for entry in result.values() if entry.state != "complete")
    assert central.list_records() == ["record-good"]
    assert same_tree(result["good"].loaded.folder, folders["good"])

    publish_record(outboxes["late"], folders["late"])
    again = gather(outboxes, orders_of(expected), central, tmp_path / "into")
    assert again["late"].state == "complete"
    assert again["good"] == result["good"]
    assert central.list_records() == ["record-good", "record-late"]
    assert same_tree(central.get_record("record-late", tmp_path / "back").folder, folders["late"])


def swap_in(store: Store, key: str, data: bytes | None) -> None:
    """Replace or remove an object in a memory store directly."""
    assert isinstance(store, MemoryStore)
    if data is None:
        del store._objects[key]
    else:
        store.swap(key, data, if_match=store.stat(key).etag)


class OnceWrong(MemoryStore):
    """Store that returns one wrong byte in the first reads of an object."""

    def __init__(self, suffix: str, reads: int) -> None:
        super().__init__()
        self.suffix, self.reads = suffix, reads

    def open(self, key: str, **options: Any) -> Any:
        if key.endswith(self.suffix) and self.reads:
            self.reads -= 1
            wrong = MemoryStore()
            wrong.create(key, b"?" + self._objects[key][1][1:])
            return wrong.open(key, **options)
        return super().open(key, **options)


@pytest.mark.parametrize("name", ["rows.parquet", "record.json"])
def test_a_byte_that_was_wrong_on_its_way_is_fetched_again(name: str, tmp_path: Path) -> None:
    for reads, state in ((2, "complete"), (3, "corrupt")):
        outbox, central = OnceWrong(name, 0), CentralStore(MemoryStore())
        publish_record(outbox, make_record(tmp_path / f"made-{reads}", "record-1", "aws"))
        outbox.reads = reads
        result = gather({"aws": outbox}, orders_of({"aws": "record-1"}), central, tmp_path / f"into-{reads}")
        assert result["aws"].state == state, result["aws"].why
        assert central.has_record("record-1") is (state == "complete")


def test_what_is_damaged_in_the_central_store_is_one_platforms_trouble_at_most(tmp_path: Path) -> None:
    outboxes = {name: MemoryStore() for name in ("aws", "azure")}
    folders = {
        name: make_record(tmp_path / name, f"record-{name}", name, content=f"content of {name:8}".encode())
        for name in outboxes
    }
    for name, folder in folders.items():
        publish_record(outboxes[name], folder)
    central = CentralStore(MemoryStore())
    [part] = read_record(folders["aws"]).parts
    artifact = f"artifacts/{part.sha256[:2]}/{part.sha256}"
    central.store.create(artifact, b"rotten")
    expected = {name: f"record-{name}" for name in outboxes}
    result = gather(outboxes, orders_of(expected), central, tmp_path / "into")
    assert {name: entry.state for name, entry in result.items()} == dict.fromkeys(outboxes, "complete")
    assert same_tree(central.get_record("record-aws", tmp_path / "back").folder, folders["aws"])

    swap_in(central.store, "records/record-aws/record.json", b"another record")
    result = gather(outboxes, orders_of(expected), central, tmp_path / "into")
    assert {name: entry.state for name, entry in result.items()} == {"aws": "unreachable", "azure": "complete"}
    assert "cannot be kept: " in result["aws"].why


def test_gather_again_fetches_no_part_twice(tmp_path: Path) -> None:
    class Counting(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.opened: list[str] = []

        def open(self, key: str, **options: Any) -> object:  # type: ignore[override]
            self.opened.append(key)
            return super().open(key, **options)

    outbox, central = Counting(), CentralStore(MemoryStore())
    publish_record(outbox, make_record(tmp_path / "made", "record-1", "aws"))
    for _ in range(2):
        outbox.opened.clear()
        gather({"aws": outbox}, orders_of({"aws": "record-1"}), central, tmp_path / "into")
    assert outbox.opened == ["records/record-1/record.json"]
    shutil.rmtree(tmp_path / "into/aws/record-1")
    (tmp_path / "into/aws/record-1").mkdir()
    assert (
        gather({"aws": outbox}, orders_of({"aws": "record-1"}), central, tmp_path / "into")["aws"].state == "complete"
    )


def test_central_keeps_rounds_texts_and_documents() -> None:
    central = CentralStore(MemoryStore())
    for number in (2, 1):
        central.put_round(RoundVerdict(round=f"round-{number}", suite="s", verdict="pass"))
    central.put_round(RoundVerdict(round="round-1", suite="s", verdict="drift"))
    assert central.list_rounds() == [("s", "round-1"), ("s", "round-2")]
    assert central.get_round("s", "round-1").verdict == "drift"
    with pytest.raises(ObjectMissingError):
        central.get_round("s", "round-3")
    assert central.find_round("s", "round-3") is None
    central.put_text("rounds/s/round-1/report.html", "<p>ä</p>")
    assert read_bytes(central.store, "rounds/s/round-1/report.html").decode() == "<p>ä</p>"
    assert central.read_document("baselines/x.json") is None
    central.change_document("baselines/x.json", lambda data: b"1" if data is None else None)
    central.change_document("baselines/x.json", lambda data: data and data + b"2")
    central.change_document("baselines/x.json", lambda _: None)
    assert central.read_document("baselines/x.json") == b"12"
