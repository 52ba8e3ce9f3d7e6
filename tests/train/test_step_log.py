"""Log of a part: the weights that its first step uses, and learning rates of several groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from plumbline.schema.step_log import StepLog
from plumbline.train.engine import Engine, StepOutcome
from plumbline.train.ranks import Ranks
from plumbline.train.watch.step_log import StepLogger


def log_of(*, is_lazy: bool, rates: tuple[float, ...] = (0.1,)) -> StepLog:
    """Return the log of one step, whose forward pass draws the weights of a layer anew if `is_lazy`."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = cast("Engine", SimpleNamespace(bare=model, ranks=Ranks()))
    observer = StepLogger(engine)
    observer.starts(0)
    observer.feeds({"labels": torch.ones(4, dtype=torch.int64)}, 0)
    if is_lazy:
        nn.init.zeros_(model.weight)
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    observer.clipped()
    optimizer.step()
    observer.done(StepOutcome([(loss, 1.0)], rates, norm))
    observer.weigh(1)
    observer.read()
    return StepLog.model_validate(observer.log())


def test_groups_of_unequal_rates_are_logged_one_by_one() -> None:
    equal, unequal = (log_of(is_lazy=False, rates=rates).learning_rates for rates in ((1e-3, 1e-3), (1e-3, 1e-4)))
    assert (equal, unequal) == ((1e-3,), ((1e-3, 1e-4),))


def test_the_start_is_what_the_first_step_computes_with() -> None:
    """A layer that is initialised at its first call has other weights than those loaded."""
    plain, lazy = log_of(is_lazy=False), log_of(is_lazy=True)
    assert plain.weights == log_of(is_lazy=False).weights
    assert [step for step, _ in plain.weights] == [0, 1]
    assert plain.weights[0] != lazy.weights[0]
    assert plain.clipped_norms == pytest.approx([0.5], rel=1e-5)
