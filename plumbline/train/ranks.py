"""One process of several: who this one is, and how small things are told to the others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from plumbline.errors import ConfigurationError

__all__ = ["Ranks", "join_ranks"]


@dataclass(frozen=True)
class Ranks:
    """This process's place among the processes of one training; `control` carries objects, on the CPU."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    control: Any = None

    @property
    def is_first(self) -> bool:
        """Whether this process writes the record."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Everyone's value, in the order of ranks, to everyone."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self.control)
        return found

    def total(self, value: float) -> float:
        """The sum of everyone's number, added in the order of ranks."""
        return float(sum(self.gather(value)))

    def anyone(self, flag: bool) -> bool:
        """Whether the flag is up in any process; cheap enough to be asked at every step."""
        if self.world == 1:
            return flag
        found = torch.tensor(int(flag))
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.control)
        return bool(found.item())

    def slice(self, count: int) -> slice:
        """The rows of a global batch of `count` that are this process's."""
        if count % self.world:
            raise ConfigurationError(f"{self.world} processes do not divide a batch of {count}", key="batch_size")
        share = count // self.world
        return slice(self.rank * share, (self.rank + 1) * share)


def _device(local_rank: int) -> torch.device:
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


@contextlib.contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the processes that `torchrun` started, or be the only one. NCCL where there are GPUs, gloo elsewhere."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(device=device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), world, device, dist.new_group(backend="gloo"))
    finally:
        # After a GPU has died this fails too; what ended the training is then already on its way, and tells more.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
