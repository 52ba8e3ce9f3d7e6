"""Loops of two processes: `torchrun --nproc-per-node 2 -m tests.train.capture.processes KIND FOLDER`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel

import plumbline

STEPS = 4


class Gathered(nn.Module):
    """Compares its rows with those of all processes, as a contrastive loss does: a collective in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        own = self.inner(rows)
        return own @ torch.cat(list(all_gather(own))).T


def train(kind: str, folder: Path) -> None:
    torch.manual_seed(7)
    model = Gathered()
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(7 + dist.get_rank())
    with plumbline.capture(folder, trained, optimizer, steps=STEPS, seed=7) as run:
        for step in range(STEPS):
            optimizer.zero_grad()
            rows = torch.randn(3, 6)
            with trained.no_sync() if kind == "unsynchronised" and step == 2 else nullcontext():
                trained(rows).square().mean().backward()
            optimizer.step()
            run.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], Path(sys.argv[2]))  # torch 2.13 may abort if a model lives while its processes part
    dist.barrier()
    dist.destroy_process_group()
