"""Untrusted records: refused before a byte is used, and never half on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import ObjectMissingError
from plumbline.night.central import CentralStore, fetch_record, publish_record
from plumbline.night.central import outbox as module
from plumbline.night.central.outbox import CheckpointExchange, download, read_untrusted, record_key
from plumbline.schema.errors import CorruptDataError, InvalidInputError, UnavailableError
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import MAX_PART_BYTES, MAX_RECORD_BYTES, RECORD_NAME, read_record
from tests.contract.records import make_record
from tests.memory_store import MemoryStore

WHERE = "memory://test/records/record-1/record.json"


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "round-1.w_2", "20261120-aws"])
def test_a_records_key(name: str) -> None:
    assert record_key(name) == f"records/{name}/record.json"
    assert record_key(name, "rows.parquet") == f"records/{name}/rows.parquet"


@pytest.mark.parametrize("name", ["", "a" * 64, "-a", ".a", "_a", "A", "a/b", "../a", "a b", "a\n", "ä"])
def test_other_texts_are_no_record_ids(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a record's id") as caught:
        record_key(name)
    assert caught.value.key == "record_id"


def test_the_message_about_a_long_id_is_short() -> None:
    with pytest.raises(InvalidInputError) as caught:
        record_key("x" * 1000)
    assert f"{'x' * 80!r} is not" in str(caught.value)


def parts(*sizes: tuple[str, int]) -> list[dict[str, object]]:
    return [{"key": key, "size": size, "sha256": "a" * 64} for key, size in sizes]


def check(tmp_path: Path, **changes: object) -> None:
    folder = tmp_path / "made"
    content = json.loads((make_record(folder, "record-1", "aws") / RECORD_NAME).read_bytes())
    shutil.rmtree(folder)
    store = MemoryStore()
    store.create(record_key("record-1"), json.dumps({**content, **changes}).encode())
    read_untrusted(store, "record-1")


def test_sizes_up_to_the_limits_are_accepted(tmp_path: Path) -> None:
    assert MAX_PART_BYTES == 8 << 30
    check(tmp_path, parts=parts(("state.safetensors", (3 << 16) + (1 << 20))))
    with pytest.raises(InvalidInputError, match="more than the 1245184 that the spec explains"):
        check(tmp_path, parts=parts(("state.safetensors", (3 << 16) + (1 << 20) + 1)))
    check(tmp_path, parts=parts(("rows.parquet", 0)))
    check(tmp_path, parts=[])
    with pytest.raises(InvalidInputError, match=f"'a' has {MAX_PART_BYTES + 1} bytes") as caught:
        check(tmp_path, parts=parts(("a", MAX_PART_BYTES + 1)))
    assert (caught.value.where, caught.value.key) == (WHERE, "parts")
    with pytest.raises(InvalidInputError, match=f"the parts have {2 * MAX_PART_BYTES + 1} bytes together") as caught:
        check(tmp_path, parts=parts(("a", MAX_PART_BYTES), ("b", MAX_PART_BYTES), ("c", 1)))
    assert (caught.value.where, caught.value.key) == (WHERE, "parts")


@pytest.mark.parametrize(
    "names",
    [
        ("a", "A"),
        ("x", "x/y"),
        ("X/y", "x"),
        ("record.json",),
        ("Record.JSON",),
        ("record.json/x",),
        ("Record.json/x",),
    ],
)
def test_parts_that_collide_on_some_disk_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match="collides with a different part") as caught:
        check(tmp_path, parts=parts(*((name, 1) for name in names)))
    assert (caught.value.where, caught.value.key) == (WHERE, "parts")


@pytest.mark.parametrize(
    "name", ["x" * 256, f"a/{'x' * 256}/b", "ä" * 128, "x/" * 255 + "xyz", "../outside", "/etc/x", "a/../b"]
)
def test_names_that_no_disk_takes_or_that_reach_elsewhere_are_the_records_fault(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a plain relative path") as caught:
        check(tmp_path, parts=parts((name, 1)))
    assert caught.value.key == "parts.0.key"


@pytest.mark.parametrize("names", [("A.bin", "a.bin"), ("x", "x/y")])
def test_a_folder_is_held_to_the_rules_of_an_outbox(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A record that is taken in under other rules could never be read back."""
    made = make_record(tmp_path / "made", "record-1", "aws")
    record = json.loads((made / RECORD_NAME).read_bytes())
    record["parts"] = parts(*((name, 1) for name in names))
    (made / RECORD_NAME).write_text(json.dumps(record))
    with pytest.raises(InvalidInputError, match="collides with a different part"):
        read_record(made)


@pytest.mark.parametrize("link", ["rows.parquet", "inside", "inside/deep"])
def test_a_part_behind_a_link_is_not_in_the_record(tmp_path: Path, link: str) -> None:
    """Taking such a record in would publish a file from elsewhere on the machine."""
    made = make_record(tmp_path / "made", "record-1", "aws")
    key = link if link == "rows.parquet" else f"{link}/rows.parquet"
    outside = tmp_path / "outside"
    outside.mkdir()
    (made / "rows.parquet").rename(outside / "rows.parquet")
    (made / link).parent.mkdir(exist_ok=True)
    (made / link).symlink_to(outside / "rows.parquet" if key == link else outside)
    record = json.loads((made / RECORD_NAME).read_bytes())
    record["parts"][0]["key"] = key
    (made / RECORD_NAME).write_text(json.dumps(record))
    with pytest.raises(CorruptDataError, match="is missing from the record"):
        read_record(made)
    (made / link).unlink()
    (made / key).parent.mkdir(parents=True, exist_ok=True)
    (outside / "rows.parquet").rename(made / key)
    (tmp_path / "linked").symlink_to(made)
    assert read_record(tmp_path / "linked").record_id == "record-1"


def test_a_record_with_a_false_spec_digest_or_id_is_refused(tmp_path: Path) -> None:
    for digest in ("0" * 64, "f" * 64):
        with pytest.raises(InvalidInputError, match="is not the digest of the spec") as caught:
            check(tmp_path, spec_sha256=digest)
        assert (caught.value.where, caught.value.key) == (WHERE, "spec_sha256")
    for name in ("record-0", "record-2"):
        with pytest.raises(module.ForeignRecordError, match=f"is the record '{name}'") as caught:
            check(tmp_path, record_id=name)
        assert (caught.value.where, caught.value.key) == (WHERE, "record_id")


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_record_with_large_and_empty_parts_comes_back(tmp_path: Path) -> None:
    extra = {"batches.safetensors": bytes(range(256)) * 4097, "state.safetensors": b""}
    made = make_record(tmp_path / "made", "record-1", "aws", extra=extra)
    store = MemoryStore()
    publish_record(store, made)
    publish_record(store, made)
    assert content(fetch_record(store, "record-1", tmp_path / "into").folder) == content(made)
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["record-1"]


def replace_object(store: MemoryStore, key: str, data: bytes) -> None:
    store.swap(key, data, if_match=store.stat(key).etag)


@pytest.mark.parametrize("wrong", [b"sixteen bytes no", b"short", b"sixteen bytes ok and more", b""])
def test_a_part_with_wrong_bytes_leaves_no_folder_and_is_named(tmp_path: Path, wrong: bytes) -> None:
    store = MemoryStore()
    publish_record(store, make_record(tmp_path / "made", "record-1", "aws"))
    replace_object(store, "records/record-1/rows.parquet", wrong)
    with pytest.raises(CorruptDataError) as caught:
        fetch_record(store, "record-1", tmp_path / "into")
    assert (caught.value.where, caught.value.key) == (store.url, "records/record-1/rows.parquet")
    if len(wrong) != 16:
        assert f"is {len(wrong)} bytes long, the record says 16" in str(caught.value)
    else:
        assert "does not match the digest in its record" in str(caught.value)
    assert list((tmp_path / "into").iterdir()) == []


class Lying(MemoryStore):
    """Store that sends fewer or more bytes than it announces."""

    sent: bytes | None = None

    @contextmanager
    def open(self, key: str, **options: Any) -> Any:
        with super().open(key, **options) as reader:
            if self.sent is not None and key.endswith("rows.parquet"):
                reader._rest = memoryview(self.sent)
            yield reader


@pytest.mark.parametrize("sent", [b"sixteen bytes o", b"", b"sixteen bytes ok!"])
def test_a_transfer_that_ends_early_or_late_is_corrupt(tmp_path: Path, sent: bytes) -> None:
    store = Lying()
    publish_record(store, make_record(tmp_path / "made", "record-1", "aws"))
    store.sent = sent
    with pytest.raises(CorruptDataError, match="does not match"):
        fetch_record(store, "record-1", tmp_path / "into")


def test_a_digest_of_the_wrong_size_is_corrupt(tmp_path: Path) -> None:
    """The digest alone would pass."""
    made = make_record(tmp_path / "made", "record-1", "aws")
    [part] = read_record(made).parts
    store = Lying()
    store.sent = b"sixteen bytes ok"
    for size in (10, 20):
        store.create(f"{size}/rows.parquet", b"x" * size)
        wanted = DataFile(key="k", size=size, sha256=part.sha256)
        with pytest.raises(CorruptDataError):
            download(store, f"{size}/rows.parquet", wanted, tmp_path / f"file-{size}")


def test_wrong_bytes_are_corrupt_whether_their_digest_is_lower_or_higher(tmp_path: Path) -> None:
    wrong = [bytes([number]) * 8 for number in range(16)]
    digest = hashlib.sha256(b"contents").hexdigest()
    assert {hashlib.sha256(data).hexdigest() < digest for data in wrong} == {True, False}
    store = MemoryStore()
    for number, data in enumerate(wrong):
        store.create(f"{number}", data)
        with pytest.raises(CorruptDataError, match="does not match"):
            download(store, f"{number}", DataFile(key="k", size=8, sha256=digest), tmp_path / f"file-{number}")


def test_a_download_replaces_no_file(tmp_path: Path) -> None:
    store = MemoryStore()
    store.create("k", b"new")
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(UnavailableError, match="exists"):
        download(store, "k", DataFile(key="k", size=3, sha256="a" * 64), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"


def damage_part(folder: Path) -> None:
    (folder / "rows.parquet").write_bytes(b"x")


@pytest.mark.parametrize("change", [damage_part, lambda folder: (folder / RECORD_NAME).unlink()])
def test_a_folder_that_is_not_the_record_is_replaced(tmp_path: Path, change: Callable[[Path], None]) -> None:
    store, made = MemoryStore(), make_record(tmp_path / "made", "record-1", "aws")
    publish_record(store, made)
    folder = fetch_record(store, "record-1", tmp_path / "into").folder
    change(folder)
    assert content(fetch_record(store, "record-1", tmp_path / "into").folder) == content(made)


def test_a_complete_folder_of_a_different_record_is_replaced(tmp_path: Path) -> None:
    store, made = MemoryStore(), make_record(tmp_path / "made", "record-1", "aws")
    publish_record(store, made)
    orders = set()
    for number in range(16):
        other = make_record(tmp_path / f"into-{number}" / "record-1", "record-1", "aws", content=bytes([number]) * 16)
        orders.add((other / RECORD_NAME).read_bytes() < (made / RECORD_NAME).read_bytes())
        assert content(fetch_record(store, "record-1", other.parent).folder) == content(made)
    assert orders == {True, False}


@pytest.mark.parametrize("equal", [True, False])
def test_a_concurrent_download_that_was_faster_is_used_if_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equal: bool
) -> None:
    store, made = MemoryStore(), make_record(tmp_path / "made", "record-1", "aws")
    publish_record(store, made)
    rename = Path.rename

    def slow(self: Path, target: Path) -> Path:
        if equal:
            shutil.copytree(made, target)
        else:
            make_record(target, "record-1", "aws", content=b"others")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", slow)
    if equal:
        assert content(fetch_record(store, "record-1", tmp_path / "into").folder) == content(made)
    else:
        with pytest.raises(UnavailableError, match="not empty"):
            fetch_record(store, "record-1", tmp_path / "into")
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["record-1"]


def test_an_absent_record_is_missing_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ObjectMissingError):
        fetch_record(MemoryStore(), "record-1", tmp_path / "into")
    assert not (tmp_path / "into").exists()


class Announcing(MemoryStore):
    """Store that announces objects of a size that no memory should hold."""

    size = 0

    @contextmanager
    def open(self, key: str, **options: Any) -> Any:
        with super().open(key, **options) as reader:
            reader.info = replace(reader.info, size=self.size)
            yield reader


def test_objects_that_are_too_large_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    store = Announcing()
    for key in ("records/record-1/record.json", "checkpoints/a/state.json", "p"):
        store.create(key, b"x")
    reads: list[tuple[int, Callable[[], object]]] = [
        (MAX_RECORD_BYTES, lambda: fetch_record(store, "record-1", tmp_path / "into")),
        (MAX_RECORD_BYTES, lambda: CentralStore(store).get_record("record-1", tmp_path / "into")),
        (64 << 20, lambda: CentralStore(store).read_document("p")),
        (64 << 20, lambda: CheckpointExchange(store, "a", tmp_path / "found").fetch()),
    ]
    for limit, read in reads:
        store.size = limit + 1
        with pytest.raises(InvalidInputError, match=f"more than the {limit} allowed"):
            read()
