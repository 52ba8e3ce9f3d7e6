"""Resuming on a different machine from the last checkpoint, with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from plumbline.central import shared_checkpoint
from plumbline.central.checkpoints import CheckpointExchange
from plumbline.digest import digest_bytes
from plumbline.errors import StoppedError
from plumbline.launch import trainer_environment
from plumbline.stores import Store, StoreUnavailableError, open_store
from tests.memory_store import MemoryStore
from tests.train.conftest import Workshop

LEARN = {"steps": 24, "evaluate_every": 8, "checkpoint_every": 4, "evaluation_rows": 40}


def killed_once_uploaded(command: list[str], exchange: CheckpointExchange) -> None:
    """Start a training, and kill it after an upload, like a spot machine."""
    environment = trainer_environment({"OMP_NUM_THREADS": "1"})
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        deadline = time.monotonic() + 60
        for line in child.stderr:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("part") == "learn" and event["step"] >= 4:
                while not exchange.publish() and child.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                os.killpg(child.pid, signal.SIGKILL)
                break
        child.wait(30)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.timeout(240)
def test_another_machine_goes_on_and_ends_on_the_same_bits(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(probe=None, learn=LEARN)
    undisturbed = workshop.train_apart(spec)
    outbox = open_store(f"file://{tmp_path}/outbox")
    first, second = tmp_path / "first" / "record", tmp_path / "second" / "record"
    first.parent.mkdir()
    second.parent.mkdir()
    killed_once_uploaded(workshop.command(spec, first), CheckpointExchange(outbox, "night-aws-w", first / "checkpoint"))
    with shared_checkpoint(outbox, "night-aws-w", second / "checkpoint") as exchange:
        done = workshop.train_apart(spec, out=second)
    learn = done.record.evidence.learn
    assert learn.resumed_at
    assert learn.to_json() | {"resumed_at": []} == undisturbed.record.evidence.learn.to_json() | {"resumed_at": []}
    assert {part.key: part.sha256 for part in done.record.parts} == {
        part.key: part.sha256 for part in undisturbed.record.parts
    }
    exchange.clear()
    assert sum(info.size for info in outbox.list("checkpoints/") if not info.key.endswith("state.json")) == 0
    assert not CheckpointExchange(outbox, "night-aws-w", tmp_path / "third").fetch()


def test_a_training_of_another_spec_or_job_starts_from_the_beginning(workshop: Workshop, tmp_path: Path) -> None:
    outbox = MemoryStore()
    item, other = tmp_path / "one", tmp_path / "other"
    saved(item, b"tensors")
    assert CheckpointExchange(outbox, "a", item).publish()
    assert not CheckpointExchange(outbox, "b", other).fetch()
    assert CheckpointExchange(outbox, "a", other).fetch()
    # What lies there is no checkpoint of this spec: the trainer leaves it alone.
    out = workshop.out()
    (out / "checkpoint").parent.mkdir()
    other.rename(out / "checkpoint")
    done = workshop.train(workshop.spec(probe=None, learn=LEARN), out=out)
    assert done.record.evidence.learn.resumed_at == ()


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


def test_a_checkpoint_that_is_half_written_or_damaged_is_not_used(tmp_path: Path) -> None:
    outbox, folder = MemoryStore(), tmp_path / "made"
    saved(folder, b"new tensors", promised=b"old tensors")
    exchange = CheckpointExchange(outbox, "a", folder)
    assert not exchange.publish()
    saved(folder, b"new tensors")
    assert exchange.publish()
    outbox.swap("checkpoints/a/a", b"xew tensors", if_match=outbox.stat("checkpoints/a/a").etag)
    assert not CheckpointExchange(outbox, "a", tmp_path / "found").fetch()
    assert not (tmp_path / "found").exists()


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
