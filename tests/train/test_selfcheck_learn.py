"""Selfcheck of a learning curve: faults that two platforms share, and that no comparison shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plumbline.train import evaluation, learn, selfcheck_learn
from plumbline.train.ranks import Ranks
from plumbline.train.rows import Rows
from plumbline.train.selfcheck_learn import learn_difference, learn_difference_once
from plumbline.train.tasks import Task

CPU = torch.device("cpu")
Patch = pytest.MonkeyPatch


def labels_of_some_rows(patch: Patch) -> None:
    """Read 15% of the labels wrongly, in training and evaluation alike."""
    plain = Rows._take_labels

    def changed(self: Rows, shard: Any, here: Any, labels: list[Any], first: int) -> None:
        plain(self, shard, here, [1 - label if at % 7 == 0 else label for at, label in enumerate(labels)], first)

    patch.setattr(Rows, "_take_labels", changed)


def evaluated_labels(patch: Patch) -> None:
    plain = evaluation._Sums.add

    def changed(self: Any, batch: Any, *given: Any) -> None:
        plain(self, {**batch, "labels": 1 - batch["labels"]}, *given)

    patch.setattr(evaluation._Sums, "add", changed)


def half_of_the_evaluation(patch: Patch) -> None:
    plain = learn.evaluate
    patch.setattr(
        learn, "evaluate",
        lambda model, rows, **named: plain(model, torch.utils.data.Subset(rows, range(len(rows) // 2)), **named),
    )  # fmt: skip


def tokens_exchanged(patch: Patch) -> None:
    plain = Rows.encoded

    def changed(self: Rows, rows: Any) -> dict[str, Any]:
        fields = plain(self, rows)
        return {**fields, "input_ids": np.where(fields["input_ids"] == 5, 6, fields["input_ids"])}

    patch.setattr(Rows, "encoded", changed)


def no_updates(patch: Patch) -> None:
    patch.setattr(torch.optim.AdamW, "step", lambda *_: None)


def argmin(patch: Patch) -> None:
    """Predict the least likely class."""
    plain = Task.answers
    patch.setattr(Task, "answers", lambda task, logits, labels: plain(task, -logits, labels))


@pytest.mark.first(2)
@pytest.mark.parametrize(("plant", "text"), [
    (labels_of_some_rows, "the labels of step 0"), (evaluated_labels, "different labels"),
    (half_of_the_evaluation, "different rows"), (tokens_exchanged, "different tokens"),
    (no_updates, "an accuracy of 0.5"), (argmin, "an accuracy of 0.0 instead of"),
])  # fmt: skip
def test_a_fault_that_all_platforms_share_is_named(
    monkeypatch: Patch, plant: Callable[[Patch], None], text: str
) -> None:
    plant(monkeypatch)
    assert text in learn_difference(CPU)


def test_what_passed_is_checked_once_for_each_lock(tmp_path: Path, monkeypatch: Patch) -> None:
    ranks = Ranks(device=CPU)
    assert learn_difference_once(ranks, tmp_path) == ""
    monkeypatch.setattr(selfcheck_learn, "learn_difference", lambda _: "wrong")
    assert learn_difference_once(ranks, tmp_path) == ""
    monkeypatch.setattr("plumbline.train.machine.fingerprint._packages", lambda: {"torch": "99"})
    assert learn_difference_once(ranks, tmp_path) == "wrong"
    assert learn_difference_once(ranks, tmp_path) == "wrong"
