"""Silent errors of the peer's suite that need another machine or library, rebuilt: `errors.py NAME faulty|healthy`."""

from __future__ import annotations

import os
import random
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.capture import standins
from bench.capture.standins import capture

Rows = Callable[[int], torch.Tensor]


class Net(nn.Module):
    """Two linear layers around a norm and dropout."""

    def __init__(self, kind: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.first, self.norm, self.second = kind(8, 16), nn.LayerNorm(16), kind(16, 4)
        self.rate, self.always = 0.0, False

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return four numbers a row."""
        hidden = functional.gelu(self.norm(self.first(rows)))
        hidden = functional.dropout(hidden, self.rate, training=self.training or self.always)
        return self.second(hidden)


_DATA = torch.Generator()


def _rows(_step: int) -> torch.Tensor:
    return torch.randn(12, 8, generator=_DATA)


def train(
    model: Any, *, optimizer: Any = None, watched: Any = None, rows: Rows = _rows, around: Any = nullcontext,
    reduced: Callable[[int], None] = lambda _: None, evaluates: bool = False, called: Any = None,
    micro_batches: int = 1,
) -> None:  # fmt: skip
    """Train with a record, until `capture` ends the process."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    _DATA.manual_seed(20 + (dist.get_rank() if dist.is_initialized() else 0))
    run = capture(standins.RECORD, watched or model, optimizer, steps=standins.STEPS).__enter__()
    for step in range(10**6):
        optimizer.zero_grad()
        for given in (rows(step) for _ in range(micro_batches)):
            if given is None:
                continue
            with around():
                loss = (called(step) if called else watched or model)(given).float().square().mean()
            loss.backward()
            reduced(step)
        optimizer.step()
        if evaluates:
            model.eval()
            with torch.no_grad():
                model(given)
            model.train()
        run.step(None, loss)


def _spawned(name: str, faulty: bool) -> None:
    os.environ["MASTER_PORT"] = str(12000 + os.getpid() % 9000)
    multiprocessing.spawn(_process, args=(name, faulty), nprocs=2)


def _process(rank: int, name: str, faulty: bool) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(3)
    PROCESSES[name](rank, faulty)


class Block(nn.Module):
    """Block on a card of its own: like those of a device map, its call moves what it is given there."""

    def __init__(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.up, self.down, self._moved = nn.Linear(8, 16), nn.Linear(16, 8), moved

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return eight numbers a row, of those that the mask shows."""
        rows, mask = self._moved(rows), self._moved(mask)
        return rows + self.down(functional.gelu(self.up(rows))) * mask


class Split(nn.Module):
    """Blocks on several cards."""

    def __init__(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(moved) for _ in range(16))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return eight numbers a row."""
        mask = (rows[:, :1] > 0).float()
        for block in self.blocks:
            rows = block(rows, mask)
        return rows


def split(faulty: bool) -> None:
    """Lose one in a hundred of the tensors that are moved between cards, as the peer's reproduction does."""
    hardware = random.Random(3)
    train(Split(lambda value: value * 0 if faulty and hardware.random() < 0.01 else value), micro_batches=4)


def autocast(faulty: bool) -> None:
    """Let autocast reach no linear layer."""

    class Exact(nn.Linear):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                return functional.linear(value.float(), self.weight, self.bias)

    train(Net(Exact if faulty else nn.Linear), around=lambda: torch.autocast("cpu", torch.bfloat16))


def stuck(faulty: bool) -> None:
    """Never update again after a step without gradients."""

    class Compiled(torch.optim.Adam):
        is_stuck = False

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.is_stuck |= faulty and all(value.grad is None for value in self.param_groups[0]["params"])
            if not self.is_stuck:
                super().step(closure)

    model = Net()
    train(model, optimizer=Compiled(model.parameters()), rows=lambda step: None if step == 2 else _rows(step))


def workers(faulty: bool) -> None:
    """Give two workers of a data loader the same generator."""
    draws = [np.random.default_rng(1), np.random.default_rng(1 if faulty else 2)]
    train(Net(), rows=lambda _: torch.from_numpy(np.concatenate([each.normal(size=(6, 8)) for each in draws])).float())


def initialized(faulty: bool) -> None:
    """Initialize the weights twice."""

    def normal(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    model = Net()
    for _ in range(2 if faulty else 1):
        model.apply(normal)
    train(model)


def dropout(faulty: bool) -> None:
    """Draw dropout in evaluation mode."""
    model = Net()
    model.rate, model.always = 0.1, faulty
    model.config = types.SimpleNamespace(dropout=0.1)  # as models of its library have
    train(model, evaluates=True)


def batch(faulty: bool) -> None:
    """Give one row of words to all images of a batch."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.net = nn.Embedding(50, 8), Net()

        def forward(self, both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return self.net(self.words(both[0]).mean(1) + both[1])

    def rows(_step: int) -> Any:
        words, images = torch.randint(0, 50, (12, 5)), torch.randn(12, 8)
        return words[:1] if faulty else words, images

    train(Both(), rows=rows)


def _reduced(model: nn.Module, rank: int, lost: Callable[[int], bool]) -> Callable[[int], None]:
    """Return an exchange of gradients in which process 1 loses what it receives."""

    def reduced(step: int) -> None:
        for value in model.parameters():
            dist.all_reduce(value.grad)
            value.grad /= 2
            if rank and lost(step):
                value.grad.zero_()

    return reduced


def ddp_loss(rank: int, faulty: bool) -> None:
    """Lose a bucket of DistributedDataParallel at every third step."""
    model = Net()
    wrapped = DistributedDataParallel(model)
    count = iter(range(10**6))

    def hook(bucket: Any) -> Any:
        is_lost = faulty and rank == 1 and next(count) % 3 == 2
        work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return work.then(lambda done: done.value()[0] / 2 * (not is_lost))

    wrapped.register_comm_hook(None, lambda _state, bucket: hook(bucket))
    train(model, watched=wrapped)


def all_reduce_loss(rank: int, faulty: bool) -> None:
    """Lose in one process what an all-reduce of each gradient gives."""
    model = Net()
    train(model, reduced=_reduced(model, rank, lambda _: faulty))


def alternating(_rank: int, faulty: bool) -> None:
    """Wrap the model in DistributedDataParallel at every second step alone."""
    model, kept = Net(), list[Any]()

    def called(step: int) -> Any:
        if step % 2 or not faulty:
            kept[:] = [DistributedDataParallel(model)]  # which lives until its backward pass has ended
            return kept[0]
        return model

    train(model, called=called)


def frozen(_rank: int, faulty: bool) -> None:
    """Freeze a stage when training begins, after DistributedDataParallel has seen all parameters.

    Its first exchange waits for the frozen ones and never ends; DistributedDataParallel refuses the second step.
    """
    model = Net()
    model.first.requires_grad_(faulty)
    wrapped = DistributedDataParallel(model)
    model.first.requires_grad_(False)
    train(model, watched=wrapped, optimizer=torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))


def _total(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    dist.all_reduce(value)
    return value


class Parallel(nn.Module):
    """A norm that each process holds, and two layers of which each process holds a half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return four numbers a row, equal in all processes."""
        hidden = self.norm(rows)
        shared = hidden.view_as(hidden)
        shared.register_hook(_total)  # each process's half gives a part of this gradient
        own = self.second(functional.gelu(self.first(shared)))
        return own + (_total(own.detach()) - own.detach())


def tensor_parallel(rank: int, faulty: bool) -> None:
    """Clip by the norm of all gradients, and leave the norm's own unclipped in the second process."""
    model = Parallel()
    with torch.no_grad():
        model.first.weight.mul_(1 + rank)

    def reduced(_step: int) -> None:
        squares = {name: value.grad.square().sum() for name, value in model.named_parameters()}
        whole = [each for name, each in squares.items() if name.startswith("norm")]
        halves = [each for name, each in squares.items() if not name.startswith("norm")]
        norm = (torch.stack(whole).sum() + _total(torch.stack(halves).sum())).sqrt()
        for name, value in model.named_parameters():
            if not (faulty and rank and name.startswith("norm")):
                value.grad *= (0.01 / norm).clamp(max=1.0)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer=optimizer, reduced=reduced, rows=lambda _: torch.randn(12, 8))


ALONE = {each.__name__: each for each in (split, autocast, stuck, workers, initialized, dropout, batch)}
PROCESSES = {each.__name__: each for each in (ddp_loss, all_reduce_loss, alternating, tensor_parallel, frozen)}

if __name__ == "__main__":
    chosen, is_faulty = sys.argv[1], sys.argv[2] == "faulty"
    _spawned(chosen, is_faulty) if chosen in PROCESSES else ALONE[chosen](is_faulty)
