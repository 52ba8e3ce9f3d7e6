"""Log of a part: the weights that its first step uses, and learning rates of several groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from plumbline.schema.step_log import StepLog
from plumbline.train.digests import checksum
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


def test_a_checksum_sees_every_kind_of_change() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9))
    plain = [value.detach().clone() for value in model.parameters()]
    changes = {
        "a bit": lambda values: values[0].view(torch.int32)[3, 3].add_(1),
        "two elements exchanged": lambda values: values[0][0].copy_(values[0][0].flip(0)),
        "two parameters exchanged": lambda values: (values[0].copy_(plain[2]), values[2].copy_(plain[0])),
        "a sign": lambda values: values[3][0].neg_(),
    }
    sums = [checksum(model.parameters(), torch.device("cpu"))]
    with torch.no_grad():
        for change in changes.values():
            change([value.data for value in model.parameters()])
            sums.append(checksum(model.parameters(), torch.device("cpu")))
            for value, old in zip(model.parameters(), plain, strict=True):
                value.copy_(old)
        sums.append(checksum(model.parameters(), torch.device("cpu")))
    assert torch.equal(sums[0], sums[-1])
    assert len({tuple(each.tolist()) for each in sums}) == len(changes) + 1
    assert checksum(torch.nn.Linear(3, 3).bfloat16().parameters(), torch.device("cpu")).shape == (64,)
