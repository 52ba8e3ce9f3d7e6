"""A frozen model with trained additions of low rank, in bfloat16: `python lora.py RECORD`."""

import sys

import torch
from torch import nn
from torch.nn import functional

from plumbline import capture


class Added(nn.Module):
    """A linear layer that stays, and a product of two small matrices beside it."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down, self.up = nn.Linear(inner.in_features, rank, bias=False), nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden) + self.up(self.down(hidden))


torch.manual_seed(7)
model = nn.Sequential(
    nn.Embedding(64, 32).requires_grad_(False), Added(nn.Linear(32, 64)), nn.GELU(), Added(nn.Linear(64, 32)),
    nn.LayerNorm(32).requires_grad_(False), nn.Linear(32, 64).requires_grad_(False),
).to(torch.bfloat16)  # fmt: skip
optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-3)
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:
    for _ in range(10):
        ids = torch.randint(0, 64, (8, 13))
        loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step({"ids": ids}, loss)
