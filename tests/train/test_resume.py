"""Resuming on a different machine from the last checkpoint, with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from plumbline.data.stores import open_store
from plumbline.environments.launch import trainer_environment
from plumbline.night.central import shared_checkpoint
from plumbline.night.central.outbox import CheckpointExchange
from tests.memory_store import MemoryStore
from tests.train.conftest import Workshop
from tests.unit.night.central.test_checkpoints import saved

LEARN = {"steps": 24, "evaluate_every": 8, "checkpoint_every": 4, "evaluation_rows": 40}


def killed_once_uploaded(command: list[str], exchange: CheckpointExchange) -> None:
    """Start a training, and kill it after an upload, like a spot machine."""
    environment = trainer_environment({"OMP_NUM_THREADS": "1"})
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        deadline = time.monotonic() + 120
        for line in child.stderr:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("part") == "learn" and event["step"] >= 4:
                while not exchange.publish() and child.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                os.killpg(child.pid, signal.SIGKILL)
                break
        child.wait(120)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.long
def test_another_machine_goes_on_and_ends_on_the_same_bits(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(probe=None, learn=LEARN)
    undisturbed = workshop.train(spec)
    outbox = open_store(f"file://{tmp_path}/outbox")
    first, second = tmp_path / "first" / "record", tmp_path / "second" / "record"
    first.parent.mkdir()
    second.parent.mkdir()
    killed_once_uploaded(workshop.command(spec, first), CheckpointExchange(outbox, "night-aws-w", first / "checkpoint"))
    with shared_checkpoint(outbox, "night-aws-w", second / "checkpoint") as exchange:
        done = workshop.train(spec, out=second)
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
