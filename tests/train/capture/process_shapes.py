"""Loops of two processes, each without anything of Plumbline in it but `run.step()`; by torchrun, `SHAPE [FOLDER]`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn import functional as collective
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import plumbline
from plumbline.train.digests import digest_tensors

STEPS = 4
Loop = tuple[Any, Any, Callable[[Callable[..., None]], None]]


class Gathered(nn.Module):
    """Compares each row's features with those of all processes, as contrastive losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        features = functional.normalize(self.body(rows))
        return features @ torch.cat(collective.all_gather(features)).T


class Parallel(nn.Module):
    """Keeps a half of its columns in each process, as tensor parallelism does."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 4), nn.Linear(4, 3, bias=False)
        with torch.no_grad():
            for value in self.parameters():
                value.add_(0.01 * rank)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return collective.all_reduce(self.down(functional.gelu(self.up(rows))))


def _batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5 + rank)
    return [
        (torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)) for _ in range(STEPS)
    ]


def _trains(
    model: nn.Module, rank: int, loss: Callable[..., torch.Tensor], optimizer: Any = None,
    before: Callable[[], object] = lambda: None, *, unsynchronised: int = -1,
) -> Loop:  # fmt: skip
    """Return a loop that calls `before` in front of each update; at the step `unsynchronised` DDP exchanges nothing."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)

    def loop(run: Callable[..., None]) -> None:
        for step, (rows, labels) in enumerate(_batches(rank)):
            optimizer.zero_grad()
            with model.no_sync() if step == unsynchronised else nullcontext():
                loss(model(rows), labels).backward()
            before()
            optimizer.step()
            run()

    return model, optimizer, loop


def gathered(rank: int, unsynchronised: int = -1) -> Loop:
    """Collectives in the forward pass, under DDP."""
    model = DistributedDataParallel(Gathered())
    loss = lambda found, _: functional.cross_entropy(found * 5, torch.arange(4) + 4 * rank)  # noqa: E731
    return _trains(model, rank, loss, unsynchronised=unsynchronised)


def unsynchronised(rank: int) -> Loop:
    """The same, where the processes do not exchange the gradients of the third step."""
    return gathered(rank, unsynchronised=2)


def parallel(rank: int) -> Loop:
    """Tensor parallelism: different weights of equal shapes."""
    return _trains(Parallel(rank), rank, functional.cross_entropy)


def stages(rank: int) -> Loop:
    """Two stages of a pipeline: different models, which send to each other."""
    model = nn.Linear(6, 5) if not rank else nn.Sequential(nn.GELU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop(run: Callable[..., None]) -> None:
        for rows, labels in _batches(0):
            optimizer.zero_grad()
            between = torch.zeros(4, 5)
            if not rank:
                made = model(rows)
                dist.send(made.detach(), 1)
                dist.recv(between, 1)
                made.backward(between)
            else:
                dist.recv(between, 0)
                between.requires_grad_()
                functional.cross_entropy(model(between), labels).backward()
                assert between.grad is not None
                dist.send(between.grad, 0)
            optimizer.step()
            run()

    return model, optimizer, loop


class Halves(nn.Module):
    """A norm that each process holds, and two layers of which each process holds a half."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 4), nn.Linear(4, 3, bias=False)
        with torch.no_grad():
            self.up.weight.mul_(1 + rank)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        normed = self.norm(rows)
        shared = normed.view_as(normed)
        shared.register_hook(_total)
        own = self.down(functional.gelu(self.up(shared)))
        return own + (_total(own.detach()) - own.detach())


def _total(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    dist.all_reduce(value)
    return value


def halves(rank: int, *, forgets: bool = False) -> Loop:
    """Tensor parallelism with a norm in each process, which the second one may forget to clip."""
    model = Halves(rank)
    clipped = [value for name, value in model.named_parameters() if not (forgets and rank and "norm" in name)]

    def clip() -> None:
        norm = nn.utils.get_total_norm([value.grad for value in model.parameters() if value.grad is not None])
        nn.utils.clip_grads_with_norm_(clipped, 0.01, _total(norm))

    return _trains(model, 0, functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), clip)


def unclipped(rank: int) -> Loop:
    """The same, where the second process forgets to clip its norm."""
    return halves(rank, forgets=True)


def independent(rank: int) -> Loop:
    """A critic of its own in each process, clipped by its own norm; a mean's bias has the same gradient in all."""
    model = nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.mul_(1 + rank)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    return _trains(model, rank, lambda found, _: found.mean(), torch.optim.SGD(model.parameters(), 0.1), clip)


def uneven(rank: int) -> Loop:
    """A parameter that only the second process uses, whose gradients are reduced by hand."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.first(rows) + (self.second(rows) if rank else 0)

    model = Whole()

    def reduce() -> None:
        for value in model.parameters():
            value.grad = torch.zeros_like(value) if value.grad is None else value.grad
            dist.all_reduce(value.grad)

    return _trains(model, rank, functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), reduce)


def sharded(rank: int) -> Loop:
    """Weights in shards, by FSDP2."""
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return _trains(model, rank, functional.cross_entropy)


SHAPES = {each.__name__: each for each in (gathered, parallel, stages, halves, independent, uneven, sharded)}
FAULTS = {each.__name__: each for each in (unclipped, unsynchronised)}


def train(name: str, folder: str | None) -> None:
    """Train, with a record if a folder is given; print the digest of each process's state and generator."""
    rank = dist.get_rank()
    torch.manual_seed(3)
    model, optimizer, loop = (SHAPES | FAULTS)[name](rank)
    if folder is None:
        loop(lambda *_: None)
    else:
        with plumbline.capture(folder, model, optimizer, steps=STEPS, seed=3) as run:
            loop(run.step)
    state = dict(model.state_dict()) | {"generator": torch.get_rng_state()}
    found: list[Any] = [None, None]
    dist.all_gather_object(found, digest_tensors(state))
    if not rank:
        sys.stdout.write(f"{found[0]} {found[1]}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    gc.collect()  # hooks of FSDP2 and their model hold each other
    # torch 2.13 may abort or hang if a model of its processes lives here, with and without a record.
    dist.barrier()
    dist.destroy_process_group()
