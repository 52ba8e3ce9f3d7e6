"""Masked language modelling: hidden tokens by row and epoch, loss over hidden tokens."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from plumbline.train.batches import Batch, pack_rows
from plumbline.train.context import Context
from plumbline.train.job import TrainJob, open_run
from plumbline.train.speed_engine import make_engine
from plumbline.train.watch.recorder import named_gradients
from plumbline.train.windows import few_rows
from tests.train.conftest import Trained, Workshop, differing_steps, within_limits


@pytest.fixture(scope="module")
def hidden(masked: Workshop) -> Trained:
    return masked.train(masked.spec())


def test_the_share_hidden_and_what_stands_in_its_place(masked: Workshop) -> None:
    probe = {"steps": 24, "evaluation_rows": 8}
    result = masked.train(masked.spec(probe=probe, data={**masked.spec().data.to_json(), "mask_probability": 0.4}))
    batches = result.arrays("batches")
    labels, ids = batches["labels"], batches["input_ids"]
    hidden = labels != -100
    words = (batches["attention_mask"] == 1) & ((labels != -100) | (ids > 4))
    share, count = hidden.sum() / words.sum(), words.sum()
    assert abs(share - 0.4) < 4 * math.sqrt(0.4 * 0.6 / count)
    mask_id = np.bincount(ids[hidden]).argmax()
    masked_share = (ids[hidden] == mask_id).mean()
    assert abs(masked_share - 0.8) < 4 * math.sqrt(0.8 * 0.2 / hidden.sum())
    kept = (ids[hidden] == labels[hidden]).mean()
    assert 0.05 < kept < 0.17
    assert set(np.unique(labels[~hidden])) == {-100}
    assert not hidden[batches["attention_mask"] == 0].any()


@pytest.mark.long
def test_another_epoch_hides_other_tokens(masked: Workshop) -> None:
    probe = {"steps": 13, "evaluation_rows": 8}
    result = masked.train(masked.spec(probe=probe, batch_size=16))
    batches = result.arrays("batches")
    first = dict(zip(batches["row_ids"][:6].reshape(-1), batches["labels"][:6].reshape(-1, 16), strict=True))
    again = zip(batches["row_ids"][6:12].reshape(-1), batches["labels"][6:12].reshape(-1, 16), strict=True)
    assert sum(not np.array_equal(first[row], labels) for row, labels in again) > 80


@pytest.mark.long
def test_uneven_micro_batches_weigh_their_tokens(masked: Workshop, hidden: Trained) -> None:
    """The mean over the global batch, not the mean of the micro-batches' means."""
    parts = masked.train(masked.spec(optimizer={"accumulation_steps": 8}))
    assert not differing_steps(hidden, parts, "batch")
    assert within_limits(hidden, parts)
    for step in parts.probe.steps_of():
        assert math.isclose(step.loss, step.defined_loss, rel_tol=1e-6)


def test_tied_weights_are_one_parameter(hidden: Trained) -> None:
    tied = {p.name: p.tied_to for p in hidden.record.evidence.model.parameters if p.tied_to}
    assert tied["cls.predictions.decoder.weight"] == "bert.embeddings.word_embeddings.weight"


def test_without_labels_rows_carry_the_text_alone(hidden: Trained) -> None:
    assert set(pq.read_table(hidden.folder / "rows.parquet")["label"].to_pylist()) == {0}


def test_a_batch_with_nothing_hidden_has_no_loss_but_no_failure_either(masked: Workshop) -> None:
    spec = masked.spec(
        batch_size=2, optimizer={"accumulation_steps": 2}, probe={"steps": 12},
        data={**masked.spec().data.to_json(), "mask_probability": 0.05},
    )  # fmt: skip
    result = masked.train(spec)
    labels = result.arrays("batches")["labels"]
    assert ((labels != -100).any(axis=-1) == 0).any(), "the draw no longer holds a row without hidden tokens"
    assert all(torch.isfinite(torch.tensor(step.loss)) for step in result.probe.steps_of())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_train_as_the_rows_themselves(masked: Workshop, attention: str) -> None:
    """Each text attends to itself alone, at its own positions: loss, logits and gradients are those of its own row."""
    speed = {"steps": 10, "precision": "fp32", "attention": attention, "padding": "packed", "dropout": 0.0}
    spec = masked.spec(probe=None, speed=speed, optimizer={"accumulation_steps": 2})
    job = TrainJob(spec, masked.out(), masked.url, masked.folder / "cache", "here", "r")
    found = []
    with open_run(job, threading.Event()) as context:
        batch = next(context.batches(first=0, count=1))
        batch["attention_mask"][1::2, 7:] = 0
        batch["attention_mask"][2, :4] = 0  # as padded on the left
        batch["labels"][batch["attention_mask"] == 0] = -100
        for padding in ("packed", "fixed"):
            engine = make_engine(context, spec, spec.speed, dropout=0.0, steps=1, ranks=context.ranks)
            engine.padding = padding
            piece, _ = next(engine._micro_batches(batch))
            inputs = engine._inputs(piece)
            logits = engine.unpacked(engine.model(**inputs).logits)[piece["attention_mask"] == 1]
            loss = engine.step(0, batch).loss(context.ranks)
            found.append((len(inputs["input_ids"]), logits.detach(), loss, named_gradients(engine.bare)))
    (packed, *ours), (whole, *usual) = found
    assert (packed, whole) == (3, 4)
    torch.testing.assert_close(ours, usual, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_packed_rows_are_those_of_the_plain_model(masked: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first micro-batch has as many rows as before, and the second is packed into fewer."""
    plain = Context.batches

    def short(self: Context, **asked: Any) -> Iterator[Batch]:
        for batch in plain(self, **asked):
            later = slice(len(batch["labels"]) // 2, None)
            batch["attention_mask"][later, 5:] = 0
            batch["labels"][batch["attention_mask"] == 0] = -100
            yield batch

    monkeypatch.setattr(Context, "batches", short)
    trained = masked.train(masked.spec(
        probe=None, speed={"steps": 10, "padding": "packed"}, optimizer={"accumulation_steps": 2},
    )).record.evidence.speed  # fmt: skip
    checks = trained.production
    assert (checks.lost, checks.repeated, trained.portable.lost) == ("", True, "")
    assert {"forward logits", "loss loss"} < dict(checks.formula).keys()
    assert max(error for _, error in checks.formula) < 1e-12


def test_windows_of_packed_rows_share_a_row_whatever_the_batch(masked: Workshop) -> None:
    """Texts that nearly fill their rows would not be packed, and their attention to each other would not show."""
    spec = masked.spec(probe=None, speed={"steps": 10, "padding": "packed"}, optimizer={"accumulation_steps": 2})
    job = TrainJob(spec, masked.out(), masked.url, masked.folder / "cache", "here", "r")
    with open_run(job, threading.Event()) as context:
        batch = next(context.batches(first=0, count=1))
        batch["attention_mask"][:] = 1
        engine = make_engine(context, spec, spec.speed, dropout=0.0, steps=1, ranks=context.ranks)
        pieces = [piece["attention_mask"] for piece, _ in engine._micro_batches(few_rows(engine, 0, batch))]
    assert len(pieces) == 2
    assert all(len(pack_rows(piece).texts) < len(piece) for piece in pieces)
