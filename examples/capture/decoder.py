"""A small decoder, trained by a plain loop: `python decoder.py RECORD`. The three lines marked so are Plumbline's."""

import sys

import torch
from torch import nn
from torch.nn import functional

from plumbline import capture  # Plumbline


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.given, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.given(self.norms[0](hidden)).chunk(3, dim=-1)
        hidden = hidden + self.out(functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        return hidden + self.down(self.act(self.up(self.norms[1](hidden))))


class Decoder(nn.Module):
    def __init__(self, words: int = 96, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


torch.manual_seed(7)
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:  # Plumbline
    for _ in range(10):
        ids = torch.randint(0, 96, (8, 17))
        loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.step({"ids": ids}, loss)  # Plumbline
