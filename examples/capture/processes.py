"""Two processes that train one model: `torchrun --nproc-per-node 2 processes.py RECORD`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from plumbline import capture


def train(record: str) -> None:
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(7 + dist.get_rank())
    with capture(record, model, optimizer, steps=10, seed=7) as run:
        for _ in range(10):
            rows, labels = torch.randn(6, 12), torch.randint(0, 3, (6,))
            loss = functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            run.step((rows, labels), loss)


dist.init_process_group("gloo")
train(sys.argv[1])  # the model, its graph and its loss end here, before their processes part
dist.barrier()
dist.destroy_process_group()
