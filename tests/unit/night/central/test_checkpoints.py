"""Checkpoints in an outbox: whole or not used, at any moment at which a machine may stop."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from plumbline.data.stores import ObjectInfo, Store, StoreUnavailableError, read_bytes
from plumbline.night.central import outbox as module
from plumbline.night.central import shared_checkpoint
from plumbline.night.central.outbox import CheckpointExchange
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import InvalidInputError, StoppedError
from tests.memory_store import MemoryStore


def saved(folder: Path, tensors: bytes, *, promised: bytes | None = None) -> None:
    """Write a folder like the trainer's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tensors.safetensors").write_bytes(tensors)
    state = {"identity": "x", "tensors_sha256": digest_bytes(tensors if promised is None else promised)}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")


def test_each_upload_leaves_the_one_before_whole_until_it_is_whole_itself(tmp_path: Path) -> None:
    class Breaking(MemoryStore):
        broken = False

        def swap(self, key: str, data: bytes, *, if_match: str | None) -> object:  # type: ignore[override]
            if self.broken and key.endswith("state.json"):
                raise StoreUnavailableError("the machine is gone")
            return super().swap(key, data, if_match=if_match)

    outbox, folder = Breaking(), tmp_path / "made"
    exchange = CheckpointExchange(outbox, "a", folder)
    for number in range(3):
        saved(folder, f"tensors {number}".encode())
        assert exchange.publish()
        assert not exchange.publish()
    outbox.broken = True
    saved(folder, b"tensors 3")
    with pytest.raises(StoreUnavailableError):
        exchange.publish()
    assert CheckpointExchange(outbox, "a", tmp_path / "found").fetch()
    assert (tmp_path / "found" / "tensors.safetensors").read_bytes() == b"tensors 2"
    assert {info.key for info in outbox.list("checkpoints/")} == {
        "checkpoints/a/a", "checkpoints/a/b", "checkpoints/a/state.json",
    }  # fmt: skip


def test_a_checkpoint_that_is_half_written_is_not_uploaded(tmp_path: Path) -> None:
    saved(tmp_path, b"new tensors", promised=b"old tensors")
    assert not CheckpointExchange(MemoryStore(), "a", tmp_path).publish()


def test_an_outbox_that_is_away_costs_the_checkpoint_and_not_the_training(tmp_path: Path) -> None:
    class Away(MemoryStore):
        def open(self, *_: object, **__: object) -> object:  # type: ignore[override]
            raise StoreUnavailableError("no answer", where=self.url)

    output: list[str] = []
    store: Store = Away()
    with shared_checkpoint(store, "a", tmp_path / "made", on_problem=output.append):
        saved(tmp_path / "made", b"tensors")
    assert len(output) == 2
    assert "no answer" in output[0]


def test_the_last_checkpoint_of_a_training_that_was_stopped_is_uploaded(tmp_path: Path) -> None:
    outbox = MemoryStore()

    def stopped() -> None:
        with shared_checkpoint(outbox, "a", tmp_path / "made", least_seconds=3600):
            saved(tmp_path / "made", b"tensors")
            raise StoppedError("SIGTERM")

    with pytest.raises(StoppedError):
        stopped()
    assert CheckpointExchange(outbox, "a", tmp_path / "found").fetch()


def fetched(outbox: Store, folder: Path, job: str = "a") -> bytes | None:
    """Return the tensors that a new machine resumes from; `None` if it starts from the beginning."""
    if not CheckpointExchange(outbox, job, folder).fetch():
        assert not folder.exists()
        return None
    return (folder / "tensors.safetensors").read_bytes()


def test_a_checkpoint_comes_back_with_its_state_in_place_of_an_older_folder(tmp_path: Path) -> None:
    outbox, made, found = MemoryStore(), tmp_path / "made", tmp_path / "deep" / "found"
    saved(made, b"tensors")
    assert CheckpointExchange(outbox, "a", made).publish()
    found.mkdir(parents=True)
    (found / "left over").touch()
    assert CheckpointExchange(outbox, "a", found).fetch()
    assert {path.name: path.read_bytes() for path in found.iterdir()} == {
        path.name: path.read_bytes() for path in made.iterdir()
    }
    # A second fetch replaces a folder that exists.
    assert CheckpointExchange(outbox, "a", found).fetch()


def test_a_large_checkpoint_comes_back_in_a_new_place(tmp_path: Path) -> None:
    outbox, tensors = MemoryStore(), bytes(range(256)) * (5 << 12)
    saved(tmp_path / "made", tensors)
    state = json.loads((tmp_path / "made" / "state.json").read_text()) | {"losses": [0.5] * 10_000}
    (tmp_path / "made" / "state.json").write_text(json.dumps(state))
    assert CheckpointExchange(outbox, "a", tmp_path / "made").publish()
    assert fetched(outbox, tmp_path / "new" / "machine" / "checkpoint") == tensors
    assert json.loads((tmp_path / "new/machine/checkpoint/state.json").read_text()) == state


def test_what_was_fetched_is_not_uploaded_again(tmp_path: Path) -> None:
    outbox, found = MemoryStore(), tmp_path / "found"
    saved(tmp_path / "made", b"tensors")
    assert CheckpointExchange(outbox, "a", tmp_path / "made").publish()
    exchange = CheckpointExchange(outbox, "a", found)
    assert exchange.fetch()
    assert not exchange.publish()
    saved(found, b"next")
    assert exchange.publish()
    assert fetched(outbox, tmp_path / "third") == b"next"


def test_uploads_alternate_between_two_slots(tmp_path: Path) -> None:
    outbox, folder = MemoryStore(), tmp_path / "made"
    for number in range(4):
        saved(folder, b"%d" % number)
        assert CheckpointExchange(outbox, "a", folder).publish()
        slots = {
            info.key[-1]: read_bytes(outbox, info.key) for info in outbox.list("checkpoints/a/") if info.key[-2] == "/"
        }
        assert slots == ({"a": b"0"}, {"a": b"0", "b": b"1"}, {"a": b"2", "b": b"1"}, {"a": b"2", "b": b"3"})[number]


@pytest.mark.parametrize("missing", ["tensors.safetensors", "state.json", "both"])
def test_an_incomplete_folder_is_not_uploaded(tmp_path: Path, missing: str) -> None:
    outbox, folder = MemoryStore(), tmp_path / "made"
    saved(folder, b"tensors")
    for path in list(folder.iterdir()):
        if missing in (path.name, "both"):
            path.unlink()
    assert not CheckpointExchange(outbox, "a", folder).publish()
    assert list(outbox.list()) == []


@pytest.mark.parametrize("state", [b"{", b"[1]", b"{}", b"\xff", b"[" * 100_000, b"1"])
def test_a_malformed_state_is_not_uploaded(tmp_path: Path, state: bytes) -> None:
    outbox, folder = MemoryStore(), tmp_path / "made"
    saved(folder, b"tensors")
    (folder / "state.json").write_bytes(state)
    assert not CheckpointExchange(outbox, "a", folder).publish()
    assert list(outbox.list()) == []


def test_a_checkpoint_of_the_greatest_size_is_uploaded_and_a_greater_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    saved(folder, b"tensors")
    state_size = len((folder / "state.json").read_text())
    for name, size, factor in (("_MAX_BYTES", len(b"tensors"), 1), ("_MAX_STATE_BYTES", state_size, 2)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, size * factor - factor)
            outbox = MemoryStore()
            assert not CheckpointExchange(outbox, "a", folder).publish()
            assert list(outbox.list()) == []
    monkeypatch.setattr(module, "_MAX_BYTES", len(b"tensors"))
    monkeypatch.setattr(module, "_MAX_STATE_BYTES", 2 * state_size)
    assert CheckpointExchange(MemoryStore(), "a", folder).publish()


def test_wrong_bytes_are_not_used_whatever_their_size_or_digest(tmp_path: Path) -> None:
    wrong = [bytes([number]) + b"ensors" for number in range(32)]
    assert {digest_bytes(data) < digest_bytes(b"tensors") for data in wrong} == {True, False}
    outbox = MemoryStore()
    saved(tmp_path / "made", b"tensors")
    CheckpointExchange(outbox, "a", tmp_path / "made").publish()
    for data in (*wrong, b"tensors and more", b"tens", b""):
        outbox.swap("checkpoints/a/a", data, if_match=outbox.stat("checkpoints/a/a").etag)
        assert fetched(outbox, tmp_path / "found") is None


def test_a_damaged_pointer_is_an_error_that_names_it(tmp_path: Path) -> None:
    pointer = {"slot": "a", "size": -1, "tensors_sha256": "a" * 64, "state": ""}
    for damaged in (b"cut off {", json.dumps(pointer).encode()):
        outbox = MemoryStore()
        outbox.create("checkpoints/a/state.json", damaged)
        with pytest.raises(InvalidInputError, match=r"memory://test/checkpoints/a/state\.json"):
            CheckpointExchange(outbox, "a", tmp_path / "found").fetch()


def test_a_completed_training_empties_both_slots_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    outbox, folder = MemoryStore(), tmp_path / "made"
    exchange = CheckpointExchange(outbox, "a", folder)
    exchange.clear()
    assert list(outbox.list()) == []
    for text in (b"1", b"2"):
        saved(folder, text)
        exchange.publish()
    saved(tmp_path / "other", b"others")
    CheckpointExchange(outbox, "b", tmp_path / "other").publish()
    exchange.clear()
    assert [outbox.stat(f"checkpoints/a/{slot}").size for slot in "ab"] == [0, 0]
    assert "identity" not in read_bytes(outbox, "checkpoints/a/state.json").decode()
    etags = [info.etag for info in outbox.list("checkpoints/a/")]
    exchange.clear()
    assert [info.etag for info in outbox.list("checkpoints/a/")] == etags
    assert fetched(outbox, tmp_path / "found") is None
    assert fetched(outbox, tmp_path / "others", "b") == b"others"
    saved(folder, b"3")
    assert CheckpointExchange(outbox, "a", folder).publish()
    assert fetched(outbox, tmp_path / "again") == b"3"


def test_one_slot_is_emptied_though_the_second_was_never_written(tmp_path: Path) -> None:
    outbox = MemoryStore()
    saved(tmp_path / "made", b"1")
    exchange = CheckpointExchange(outbox, "a", tmp_path / "made")
    exchange.publish()
    exchange.clear()
    assert {info.key: info.size for info in outbox.list("checkpoints/a/") if info.key[-2] == "/"} == {
        "checkpoints/a/a": 0
    }


def test_the_pointer_is_emptied_before_the_slots(tmp_path: Path) -> None:
    """A machine that stops in between leaves no pointer to tensors that are gone."""

    class Breaking(MemoryStore):
        def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
            if not data:
                raise StoreUnavailableError("the machine is gone")
            return super().swap(key, data, if_match=if_match)

    outbox = Breaking()
    saved(tmp_path / "made", b"1")
    exchange = CheckpointExchange(outbox, "a", tmp_path / "made")
    exchange.publish()
    with pytest.raises(StoreUnavailableError):
        exchange.clear()
    assert fetched(outbox, tmp_path / "found") is None


class Clock:
    """Clock of the upload thread, which stands still; counts how often it was read."""

    def __init__(self) -> None:
        self.now = 0.0
        self._reads = threading.Semaphore(0)

    def monotonic(self) -> float:
        self._reads.release()
        return self.now

    def wait_for_reads(self, count: int) -> None:
        while self._reads.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self._reads.acquire(timeout=20)


class Watched(MemoryStore):
    """Outbox that signals each written pointer."""

    def __init__(self) -> None:
        super().__init__()
        self.pointers = threading.Semaphore(0)

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        info = super().swap(key, data, if_match=if_match)
        if key.endswith("state.json"):
            self.pointers.release()
        return info


def test_checkpoints_are_uploaded_during_a_training_with_a_pause_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, folder, clock = Watched(), tmp_path / "made", Clock()
    monkeypatch.setattr(module, "time", clock)
    saved(folder, b"1")
    with shared_checkpoint(outbox, "a", folder, poll_seconds=0.001, least_seconds=30):
        assert outbox.pointers.acquire(timeout=20)
        assert fetched(outbox, tmp_path / "first") == b"1"
        saved(folder, b"2")
        for now in (0.0, 29.9):
            clock.now = now
            clock.wait_for_reads(5)
            assert not outbox.pointers.acquire(blocking=False)
        clock.now = 30.0
        assert outbox.pointers.acquire(timeout=20)
        assert fetched(outbox, tmp_path / "second") == b"2"
        saved(folder, b"3")
        clock.now = 59.9
        clock.wait_for_reads(5)
        assert not outbox.pointers.acquire(blocking=False)
    assert fetched(outbox, tmp_path / "third") == b"3"
    assert not any(thread.name == "checkpoint" for thread in threading.enumerate())


def test_a_failing_upload_is_reported_and_tried_again(tmp_path: Path) -> None:
    class Failing(Watched):
        failures = 2

        def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailableError("no answer") if self.failures else OSError("reset")
            return super().swap(key, data, if_match=if_match)

    outbox, problems = Failing(), list[str]()
    saved(tmp_path / "made", b"1")
    with shared_checkpoint(
        outbox, "a", tmp_path / "made", on_problem=problems.append, poll_seconds=0.001, least_seconds=0
    ):
        assert outbox.pointers.acquire(timeout=20)
    assert problems == ["checkpoint: no answer", "checkpoint: reset"]
    assert fetched(outbox, tmp_path / "found") == b"1"


def test_a_training_begins_with_the_last_checkpoint(tmp_path: Path) -> None:
    outbox = MemoryStore()
    saved(tmp_path / "made", b"1")
    CheckpointExchange(outbox, "a", tmp_path / "made").publish()
    with shared_checkpoint(outbox, "a", tmp_path / "next"):
        assert (tmp_path / "next" / "tensors.safetensors").read_bytes() == b"1"
