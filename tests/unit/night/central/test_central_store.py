"""Central store: markers after artifacts, and texts that no slower writer overwrites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import ObjectInfo, ObjectMissingError, StoreUnavailableError, read_bytes
from plumbline.night.central import CentralStore
from plumbline.night.central.central_store import artifact_key
from plumbline.records import load_record
from plumbline.schema.errors import InvalidInputError, UnavailableError
from plumbline.schema.record import read_record
from plumbline.schema.verdict import RoundVerdict
from tests.contract.records import make_record
from tests.memory_store import BreakingStore, MemoryStore


def test_a_record_is_kept_as_artifacts_and_a_marker(tmp_path: Path) -> None:
    folder = make_record(tmp_path / "made", "record-1", "aws", extra={"state.safetensors": b"more"})
    central = CentralStore(MemoryStore())
    for _ in range(2):
        central.put_record(load_record(folder))
    digests = [part.sha256 for part in read_record(folder).parts]
    assert artifact_key(digests[0]) == f"artifacts/{digests[0][:2]}/{digests[0]}"
    assert {info.key for info in central.store.list()} == {
        "records/record-1/record.json", *map(artifact_key, digests),
    }  # fmt: skip


def test_equal_parts_of_two_records_are_kept_once(tmp_path: Path) -> None:
    central = CentralStore(MemoryStore())
    for name in ("record-1", "record-2"):
        central.put_record(load_record(make_record(tmp_path / name, name, "aws")))
    assert len(list(central.store.list("artifacts/"))) == 1
    assert central.list_records() == ["record-1", "record-2"]


def test_a_marker_in_the_central_store_is_written_last(tmp_path: Path) -> None:
    folder, store = (
        make_record(tmp_path / "made", "record-1", "aws", extra={"state.safetensors": b"more"}),
        BreakingStore(),
    )
    central = CentralStore(store)
    for left in range(3):
        store.left = left
        with pytest.raises(UnavailableError):
            central.put_record(load_record(folder))
        assert not central.has_record("record-1")
        assert central.list_records() == []
    store.left = 3
    central.put_record(load_record(folder))
    assert central.has_record("record-1")


def test_a_store_that_does_not_answer_is_not_a_store_without_the_record() -> None:
    class Away(MemoryStore):
        def stat(self, key: str) -> ObjectInfo:
            raise StoreUnavailableError(f"no answer about {key}")

    with pytest.raises(StoreUnavailableError):
        CentralStore(Away()).has_record("record-1")
    assert not CentralStore(MemoryStore()).has_record("record-1")


def test_a_damaged_artifact_is_not_handed_out(tmp_path: Path) -> None:
    central, folder = CentralStore(MemoryStore()), make_record(tmp_path / "made", "record-1", "aws")
    central.put_record(load_record(folder))
    key = artifact_key(read_record(folder).parts[0].sha256)
    central.store.swap(key, b"sixteen bytes no", if_match=central.store.stat(key).etag)
    with pytest.raises(InvalidInputError, match=key):
        central.get_record("record-1", tmp_path / "into")
    with pytest.raises(ObjectMissingError):
        central.get_record("record-2", tmp_path / "into")
    central.store.create("records/record-3/record.json", folder / "record.json")
    with pytest.raises(InvalidInputError, match=r"memory://test/records/record-3/record\.json.*'record-1'"):
        central.get_record("record-3", tmp_path / "into")


def test_only_markers_are_listed() -> None:
    central = CentralStore(MemoryStore())
    for key in (
        "b/record.json",
        "a/record.json",
        "c/rows.parquet",
        "d/deep/record.json",
        "record.json",
        "e/round.json",
        "f/record.json/x",
    ):
        central.store.create(f"records/{key}", b"x")
    for key in ("2/round.json", "1/round.json", "3/report.html", "4/deep/round.json", "5/record.json"):
        central.store.create(f"rounds/{key}", b"x")
    assert (central.list_records(), central.list_rounds()) == (["a", "b"], [("4", "deep")])
    assert central.list_rounds("4") == [("4", "deep")]
    assert central.list_rounds("5") == []


def test_a_damaged_round_is_an_error_that_names_it() -> None:
    central = CentralStore(MemoryStore())
    central.put_round(RoundVerdict(round="night-1", suite="s", verdict="pass"))
    assert read_bytes(central.store, "rounds/s/night-1/round.json").startswith(b'{\n  "schema_version"')
    central.put_text("rounds/s/night-1/round.json", "cut off {")
    with pytest.raises(InvalidInputError, match=r"memory://test/rounds/s/night-1/round\.json"):
        central.get_round("s", "night-1")


class Racing(MemoryStore):
    """Store in which a faster writer writes before each of the next swaps."""

    races = 0
    swaps = 0

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        self.swaps += 1
        if self.races:
            self.races -= 1
            info = self._objects.get(key)
            super().swap(key, b"faster", if_match=info[0].etag if info else None)
        return super().swap(key, data, if_match=if_match)


def test_a_text_replaces_what_faster_writers_wrote_after_a_new_check() -> None:
    store, checks = Racing(), list[bool]()
    store.races = 7
    CentralStore(store).put_text("t", "mine", lambda: checks.append(True))
    assert read_bytes(store, "t") == b"mine"
    assert len(checks) == store.swaps == 8


@pytest.mark.parametrize("write", [
    lambda central: central.put_text("t", "mine"), lambda central: central.change_document("t", lambda _: b"mine"),
])  # fmt: skip
def test_a_write_that_is_always_too_late_ends_with_an_error_that_names_it(write: Callable[[CentralStore], Any]) -> None:
    store = Racing()
    store.races = 1000
    with pytest.raises(UnavailableError, match="other writers") as caught:
        write(CentralStore(store))
    assert (caught.value.where, caught.value.key) == (store.url, "t")
    assert read_bytes(store, "t") == b"faster"


def refuse() -> None:
    raise UnavailableError("superseded")


def test_a_failed_check_prevents_the_write() -> None:
    central = CentralStore(MemoryStore())
    writes: list[Callable[[], Any]] = [
        lambda: central.put_text("t", "mine", refuse),
        lambda: central.put_round(RoundVerdict(round="night-1", suite="s", verdict="pass"), refuse),
    ]
    for write in writes:
        with pytest.raises(UnavailableError, match="superseded"):
            write()
    assert list(central.store.list()) == []


def test_a_change_is_made_of_what_a_faster_writer_wrote() -> None:
    store, seen = Racing(), list[bytes | None]()
    store.races = 1

    def change(data: bytes | None) -> bytes:
        seen.append(data)
        return (data or b"") + b" mine"

    CentralStore(store).change_document("d", change)
    assert (seen, read_bytes(store, "d")) == ([None, b"faster"], b"faster mine")


def test_a_large_document_is_read() -> None:
    central, data = CentralStore(MemoryStore()), bytes(range(256)) * (5 << 12)
    central.change_document("d", lambda _: data)
    assert central.read_document("d") == data
