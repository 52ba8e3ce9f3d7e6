"""Learn part: it learns, survives kills, and ends on the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from plumbline.data.stores import open_store
from plumbline.environments.launch import run_training
from plumbline.judge import compare
from plumbline.night.central import shared_checkpoint
from plumbline.night.central.outbox import CheckpointExchange
from plumbline.records import load_record
from plumbline.schema.errors import StoppedError, UnavailableError
from plumbline.schema.record import RunRecord, read_record
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.schema.verdict import Judgement
from plumbline.train import learn as learn_module
from plumbline.train.engine import Engine
from tests.said import said
from tests.train.conftest import Trained, Workshop, before_steps, processes_below
from tests.train.forked_ranks import run_alone, run_ranks

LEARN = {"steps": 24, "evaluate_every": 8, "checkpoint_every": 4, "evaluation_rows": 40}


def learning(workshop: Workshop, **changes: object):
    return workshop.spec(probe=None, learn={**LEARN, **changes})


@pytest.fixture(scope="module")
def undisturbed(workshop: Workshop) -> Trained:
    return workshop.train(learning(workshop))


def ending(record: RunRecord) -> dict[str, object]:
    result = record.evidence.learn.to_json()
    result.pop("resumed_at")
    return result


def test_the_curve_is_whole(undisturbed: Trained) -> None:
    learn = undisturbed.record.evidence.learn
    assert learn.steps == len(learn.losses) == 24
    assert [evaluation.step for evaluation in learn.evaluations] == [8, 16, 24]
    assert all(evaluation.num_rows == 40 for evaluation in learn.evaluations)
    assert learn.resumed_at == ()
    answers = load_record(undisturbed.folder).answers
    assert len(answers["row_ids"]) == 40
    assert int(answers["right"].sum()) / 40 == learn.evaluations[-1].accuracy
    predictions = undisturbed.arrays("evaluation")["predictions"]
    num_positive = int(predictions[answers["right"] == 1].sum() + (1 - predictions[answers["right"] == 0]).sum())
    assert learn.chance == max(num_positive, 40 - num_positive) / 40
    assert learn.num_predicted == len(set(predictions.tolist()))
    assert undisturbed.arrays("evaluation")["row_ids"].tolist() == list(range(96, 136))
    assert {path.name for path in undisturbed.folder.iterdir()} == {
        "record.json", "answers.safetensors", "evaluation.safetensors", "rows.parquet",
    }  # fmt: skip


@pytest.mark.long
def test_it_learns(workshop: Workshop) -> None:
    spec = learning(workshop, steps=150, evaluate_every=150).replace(
        optimizer={"learning_rate": 2e-3}, schedule={"warmup_steps": 10}
    )
    learn = workshop.train(spec).record.evidence.learn
    assert sum(learn.losses[-10:]) < 0.8 * sum(learn.losses[:10])


def test_dropout_is_on_and_moves_the_curve(workshop: Workshop, undisturbed: Trained) -> None:
    dry = workshop.train(learning(workshop, dropout=0.0))
    assert dry.record.evidence.learn.losses[0] != undisturbed.record.evidence.learn.losses[0]


@pytest.mark.first(1)
@pytest.mark.parametrize("parts", [2, 4])
def test_masks_do_not_depend_on_micro_batches(workshop: Workshop, undisturbed: Trained, parts: int) -> None:
    split = workshop.train(learning(workshop).replace(optimizer={"accumulation_steps": parts}))
    pairs = zip(split.record.evidence.learn.losses[:4], undisturbed.record.evidence.learn.losses[:4], strict=True)
    assert all(abs(a - b) < 1e-5 for a, b in pairs)


class SignalAt:
    """A training one of whose ranks gets this signal at the start of a step."""

    def __init__(self, number: signal.Signals, step: int, rank: int = 0) -> None:
        self.number, self.step, self.rank = number, step, rank

    @contextlib.contextmanager
    def __call__(self, rank: int, _folder: Path) -> Iterator[None]:
        def signalled(_engine: Engine, step: int) -> None:
            if step == self.step and rank == self.rank:
                os.kill(os.getpid(), self.number)

        with pytest.MonkeyPatch.context() as patch:
            before_steps(patch, signalled)
            yield


@pytest.mark.long
def test_killed_and_started_again_it_ends_on_the_same_bits(
    workshop: Workshop, undisturbed: Trained, tmp_path: Path
) -> None:
    spec, out = learning(workshop), workshop.out()
    _, _, _, *arguments = workshop.command(spec, out)
    for step in (6, 18):
        assert run_alone(arguments, tmp_path, SignalAt(signal.SIGKILL, step)) == -signal.SIGKILL
        assert not (out / "record.json").exists()
    done = workshop.train(spec, out=out)
    assert ending(done.record) == ending(undisturbed.record)
    assert done.record.evidence.learn.resumed_at == (4, 16)
    assert {part.key: part.sha256 for part in done.record.parts} == {
        part.key: part.sha256 for part in undisturbed.record.parts
    }
    assert not list(out.glob("checkpoint*"))


def interrupted(workshop: Workshop, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Train until the machine ends at step 10, after the checkpoint of step 8; return the folder."""
    out = workshop.out()

    def stop(_engine: Engine, step: int) -> None:
        if step == 10:
            raise StoppedError("the machine ends")

    with monkeypatch.context() as patch:
        before_steps(patch, stop)
        with pytest.raises(StoppedError):
            workshop.train(spec, out=out)
    return out


@pytest.mark.long
def test_another_machine_goes_on_and_ends_on_the_same_bits(
    workshop: Workshop, undisturbed: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, outbox, record = learning(workshop), open_store(f"file://{tmp_path}/outbox"), tmp_path / "second/record"
    first = interrupted(workshop, spec, monkeypatch)
    assert CheckpointExchange(outbox, "night-aws-w", first / "checkpoint").publish()
    assert not CheckpointExchange(outbox, "another-job", tmp_path / "other").fetch()
    record.parent.mkdir()
    with shared_checkpoint(outbox, "night-aws-w", record / "checkpoint") as exchange:
        done = workshop.train(spec, out=record)
    assert done.record.evidence.learn.resumed_at == (8,)
    assert ending(done.record) == ending(undisturbed.record)
    assert {part.key: part.sha256 for part in done.record.parts} == {
        part.key: part.sha256 for part in undisturbed.record.parts
    }
    exchange.clear()
    assert sum(info.size for info in outbox.list("checkpoints/") if not info.key.endswith("state.json")) == 0
    assert not CheckpointExchange(outbox, "night-aws-w", tmp_path / "third").fetch()


@pytest.mark.long
def test_a_broken_checkpoint_is_not_gone_on_with(
    workshop: Workshop, undisturbed: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = learning(workshop)
    out = interrupted(workshop, spec, monkeypatch)
    path = out / "checkpoint" / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = workshop.train(spec, out=out)
    assert ending(done.record) == ending(undisturbed.record)
    assert done.record.evidence.learn.resumed_at == ()


@pytest.mark.first(1)
@pytest.mark.parametrize(("threads", "resumed_at"), [(1, (8,)), (2, ())])
def test_only_a_machine_of_the_same_arithmetic_goes_on(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, threads: int, resumed_at: tuple[int, ...]
) -> None:
    """Otherwise the record has the machine of its last segment, and the bits of another."""
    spec, before = learning(workshop, steps=12, evaluation_rows=8), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        out = interrupted(workshop, spec, monkeypatch)
        torch.set_num_threads(threads)
        done, undisturbed = workshop.train(spec, out=out), workshop.train(spec)
    finally:
        torch.set_num_threads(before)
    assert done.record.evidence.learn.resumed_at == resumed_at
    assert ending(done.record) == ending(undisturbed.record)


@pytest.mark.long
def test_a_checkpoint_of_another_spec_is_not_gone_on_with(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = learning(workshop)
    out = interrupted(workshop, spec, monkeypatch)
    other = workshop.train(spec.replace(seed=8), out=out)
    assert other.record.evidence.learn.resumed_at == ()
    assert other.record.spec.seed == 8


def test_asked_to_stop_it_stops_and_says_so(workshop: Workshop, tmp_path: Path) -> None:
    spec, out = learning(workshop, steps=5000, checkpoint_every=10, evaluate_every=1000), workshop.out()
    _, _, _, *arguments = workshop.command(spec, out)
    assert run_alone(arguments, tmp_path, SignalAt(signal.SIGTERM, 12)) == 3
    assert "stopped on request" in (tmp_path / "rank-0.log").read_text().splitlines()[-1]
    record = read_record(out)
    assert (record.exit.status, record.exit.code, record.exit.part) == ("failed", "stopped", "learn")
    assert record.evidence.learn.losses
    assert (out / "checkpoint").is_dir()


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_asked_to_stop_one_of_two_processes_stops_both_with_a_checkpoint(
    workshop: Workshop, tmp_path: Path, rank: int
) -> None:
    """A signal reaches ranks at different steps. Each on its own, they wait for one another until they are killed."""
    spec, out = learning(workshop, steps=5000, checkpoint_every=4000, evaluate_every=5000), workshop.out()
    _, _, _, *arguments = workshop.command(spec, out)
    assert run_ranks(arguments, tmp_path, SignalAt(signal.SIGTERM, 50, rank)) == [3, 3]
    record = read_record(out)
    assert (record.exit.status, record.exit.code, record.exit.part) == ("failed", "stopped", "learn")
    state = json.loads((out / "checkpoint" / "state.json").read_bytes())
    assert 50 < state["progress"]["step"] == record.evidence.learn.steps < 4000


def test_a_deadline_leaves_nothing_running(workshop: Workshop, tmp_path: Path) -> None:
    """The trainer is one that hangs, with a child."""
    spec, out, python = learning(workshop), workshop.out(), tmp_path / "python"
    write_spec(spec, out.with_suffix(".json"))
    python.write_text(f"#!/bin/sh\n{sys.executable} -c 'import time; time.sleep(60)' {out} & wait\n")
    python.chmod(0o755)
    with pytest.raises(UnavailableError, match="did not end in time"):
        run_training(
            out.with_suffix(".json"), out, data=workshop.url, cache=workshop.folder / "cache", platform="here",
            record_id="r", timeout_seconds=0.5, python=python,
        )  # fmt: skip
    assert not processes_below(out)


def judged(reference: Trained, candidate: Trained) -> Judgement:
    return compare(load_record(reference.folder), load_record(candidate.folder), throughput=False)


def test_another_dropout_on_an_equal_machine_is_drift_and_named(
    workshop: Workshop, undisturbed: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = learn_module.build_model
    monkeypatch.setattr(learn_module, "build_model", lambda *a, **k: plain(*a, **(k | {"dropout": 0.2})))
    judgement = judged(undisturbed, workshop.train(learning(workshop)))
    assert judgement.verdict == "drift"
    assert (judgement.first_divergence.part, judgement.first_divergence.step) == ("learn", 0)
    assert [cause.code for cause in judgement.causes] == ["rng"]
    assert "dropout is 0.2 instead of 0.1" in said(judgement.causes[0].why)


@pytest.mark.long
def test_a_schedule_that_starts_again_on_an_equal_machine_is_drift_and_named(
    workshop: Workshop, undisturbed: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Engine.advance

    def restarted(self: Engine) -> None:
        if self.schedule.last_epoch == 12:
            self.schedule.last_epoch = -1
        plain(self)

    monkeypatch.setattr(Engine, "advance", restarted)
    judgement = judged(undisturbed, workshop.train(learning(workshop)))
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == ["schedule"]
    assert "step 13 was taken with a learning rate" in said(judgement.causes[0].why)


def test_a_curve_repeated_on_an_equal_machine_passes(workshop: Workshop, undisturbed: Trained) -> None:
    assert judged(undisturbed, workshop.train(learning(workshop))).verdict == "pass"
