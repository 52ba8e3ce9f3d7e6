"""A detector of two scales, which gives its losses by name as torchvision's do: `python detector.py RECORD`."""

import sys

import torch
from torch import nn
from torch.nn import functional

from plumbline import capture


def convolution(inner: int, outer: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inner, outer, 3, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True))


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fine, self.coarse = convolution(3, 8), convolution(8, 16), convolution(16, 16)
        self.lateral = nn.Conv2d(16, 16, 1)
        self.classes, self.boxes = nn.Conv2d(16, 3, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, images: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        fine = self.fine(self.stem(torch.stack(images)))
        coarse = self.coarse(fine)
        scores, distances = [], []
        for level in (self.lateral(fine) + functional.interpolate(coarse, scale_factor=2.0), coarse):
            size = level.shape[-1]
            given, found, wanted = self.classes(level), self.boxes(level), torch.zeros(len(images), 3, size, size)
            for row, target in enumerate(targets):
                x, y = ((target["boxes"][:, :2] + target["boxes"][:, 2:]) / 2 * size).long().clamp(max=size - 1).T
                wanted[row, target["labels"], y, x] = 1.0
                distances.append(functional.smooth_l1_loss(found[row, :, y, x].T, target["boxes"]))
            scores.append(functional.binary_cross_entropy_with_logits(given, wanted))
        return {"classes": torch.stack(scores).sum(), "boxes": torch.stack(distances).mean()}


torch.manual_seed(7)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:
    for _ in range(10):
        images = [torch.rand(3, 32, 32) for _ in range(4)]
        counts = torch.randint(1, 4, (4,)).tolist()
        targets = [
            {"boxes": torch.rand(num, 4).sort(1).values, "labels": torch.randint(0, 3, (num,))} for num in counts
        ]
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step((images, targets), loss)
