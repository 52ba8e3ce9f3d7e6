"""Ranks of a distributed training, and exchange of small values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from plumbline.schema.errors import ConfigurationError
from plumbline.schema.variables import variable
from plumbline.train.failure import PeerLostError


@dataclass(frozen=True)
class Ranks:
    """Rank, world size and device; `control` exchanges objects on the CPU."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    control: Any = None
    num_missing: int = 0
    """Number of this machine's processes that have no GPU of their own."""

    @property
    def is_first(self) -> bool:
        """Return whether this process writes the record."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return all processes' picklable values, by rank, in every process."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        with _answers():
            dist.all_gather_object(values, value, group=self.control)
        return values

    def collect(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return all processes' tensors on the host, in the first process only."""
        own = value.detach().cpu().contiguous()
        pieces = [torch.empty_like(own) for _ in range(self.world)] if self.is_first else None
        with _answers():
            dist.gather(
                own.view(torch.uint8), pieces and [piece.view(torch.uint8) for piece in pieces], group=self.control
            )
        return pieces or []

    def concatenate(self, array: NDArray[Any]) -> NDArray[Any]:
        """Concatenate all processes' arrays in the first process; others keep their own."""
        pieces = self.collect(torch.from_numpy(array)) if self.world > 1 else []
        return np.concatenate([piece.numpy() for piece in pieces]) if pieces else array

    def total(self, value: float) -> float:
        """Return the sum of all processes' numbers, added in rank order."""
        return float(sum(self.gather(value)))

    def summed(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum of all processes' tensors, in every process."""
        if self.world == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total

    def anyone(self, flag: bool) -> bool:
        """Return whether the flag is set in any process (cheap)."""
        if self.world == 1:
            return flag
        flags = torch.tensor(int(flag))
        with _answers():
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self.control)
        return bool(flags.item())

    def slice(self, count: int) -> slice:
        """Return this process's rows of a global batch of `count`."""
        if count % self.world:
            raise ConfigurationError(f"{self.world} processes do not divide a batch of {count}", key="batch_size")
        share = count // self.world
        return slice(self.rank * share, (self.rank + 1) * share)


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    """Raise `PeerLostError` if another process does not respond."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"a process of the training does not answer: {error}".splitlines()[0]) from error


def _device(local_rank: int) -> torch.device:
    """Return this process's device; processes share GPUs if there are too few."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _num_missing(local_world: int) -> int:
    """Return how many more GPUs the local processes would need."""
    return max(0, local_world - torch.cuda.device_count()) if torch.cuda.is_available() else 0


@contextlib.contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join torchrun's processes, if any: NCCL on GPUs, gloo elsewhere."""
    world = int(variable("WORLD_SIZE", "1"))
    device = _device(int(variable("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(device=device)
        return
    num_missing = _num_missing(int(variable("LOCAL_WORLD_SIZE", str(world))))
    dist.init_process_group("nccl" if device.type == "cuda" and not num_missing else "gloo")
    try:
        yield Ranks(dist.get_rank(), world, device, dist.new_group(backend="gloo"), num_missing)
    finally:
        # After a GPU has died this fails too; the first error is already being raised, and says more.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
