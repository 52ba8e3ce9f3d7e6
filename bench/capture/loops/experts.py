"""A language model with a mixture of experts and two micro-batches a step: `python experts.py RECORD`."""

import sys

import torch
from torch import nn
from torch.nn import functional

from plumbline import capture


class Experts(nn.Module):
    """Sends each word to two of four experts, and keeps how evenly it did."""

    def __init__(self, width: int, num: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, num, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(num)
        )
        self.balance = torch.zeros(())

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        chances = self.router(words).softmax(-1)
        weights, chosen = chances.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        used = functional.one_hot(chosen, len(self.experts)).sum(1).float()
        self.balance = len(self.experts) * (used.mean(0) * chances.mean(0)).sum()
        output = torch.zeros_like(words)
        for number, expert in enumerate(self.experts):
            places, rank = (chosen == number).nonzero(as_tuple=True)
            output = output.index_add(0, places, expert(words[places]) * weights[places, rank, None])
        return output


class Model(nn.Module):
    def __init__(self, words: int = 50, width: int = 16) -> None:
        super().__init__()
        self.words, self.norm, self.mixture = nn.Embedding(words, width), nn.RMSNorm(width), Experts(width)
        self.cells, self.head = nn.GRU(width, width, batch_first=True), nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cells(self.words(ids))
        return self.head(hidden + self.mixture(self.norm(hidden).flatten(0, 1)).view_as(hidden))


torch.manual_seed(7)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:
    for _ in range(10):
        optimizer.zero_grad()
        for _ in range(2):
            ids = torch.randint(0, 50, (6, 11))
            loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss = (loss + 0.01 * model.mixture.balance) / 2
            loss.backward()
        optimizer.step()
        run.step()
