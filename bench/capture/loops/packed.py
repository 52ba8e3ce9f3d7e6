"""A recurrent tagger of packed sequences, fed by a data loader: `python packed.py RECORD`."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

from plumbline import capture

Row = tuple[torch.Tensor, torch.Tensor]


class Tagger(nn.Module):
    def __init__(self, words: int = 60, width: int = 16, tags: int = 5) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(words, width, padding_idx=0), nn.Dropout(0.2)
        self.cells = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, tags)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.drop(self.words(ids)), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return self.head(self.norm(hidden))


def collate(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, tags = zip(*rows, strict=True)
    padded = pad_sequence(tags, batch_first=True, padding_value=-100)
    return pad_sequence(ids, batch_first=True), torch.tensor([len(each) for each in ids]), padded


torch.manual_seed(7)
sizes = torch.randint(3, 13, (80,)).tolist()
rows = [(torch.randint(1, 60, (size,)), torch.randint(0, 5, (size,))) for size in sizes]
loader = DataLoader(rows, 8, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(1))
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:
    for ids, lengths, tags in loader:
        logits = model(ids, lengths)
        loss = functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        run.step((ids, tags), loss)
