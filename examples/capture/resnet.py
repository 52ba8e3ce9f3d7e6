"""A residual network with batch normalisation: `python resnet.py RECORD`."""

import sys

import torch
from torch import nn
from torch.nn import functional

from plumbline import capture


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.norms[0](self.convolutions[0](images)))
        return functional.relu(images + self.norms[1](self.convolutions[1](inner)))


torch.manual_seed(7)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), Block(8), nn.MaxPool2d(2), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Dropout(0.1), nn.Linear(8, 4),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:
    for _ in range(10):
        images, labels = torch.randn(8, 3, 16, 16), torch.randint(0, 4, (8,))
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.step((images, labels), loss)
