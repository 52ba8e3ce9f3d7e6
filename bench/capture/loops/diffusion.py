"""A denoising diffusion model with an average of its weights: `python diffusion.py RECORD`."""

import sys

import torch
from torch import nn
from torch.nn import functional

from plumbline import capture


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(4, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.time, self.drop = nn.Linear(32, outer), nn.Dropout(0.1)
        self.second, self.short = nn.Conv2d(outer, outer, 3, padding=1), nn.Conv2d(inner, outer, 1)

    def forward(self, images: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(functional.silu(self.norm(images))) + self.time(time)[:, :, None, None]
        return self.second(self.drop(functional.silu(hidden))) + self.short(images)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down, self.middle = nn.Conv2d(1, 16, 3, padding=1), Residual(16, 16), Residual(16, 32)
        self.up, self.leave = Residual(48, 16), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        angles = times[:, None] * torch.logspace(0, -3, 16)
        time = torch.cat([angles.sin(), angles.cos()], 1)
        fine = self.down(self.enter(images), time)
        coarse = self.middle(functional.avg_pool2d(fine, 2), time)
        return self.leave(self.up(torch.cat([fine, functional.interpolate(coarse, scale_factor=2.0)], 1), time))


torch.manual_seed(7)
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
data = torch.rand(80, 1, 8, 8) * 2 - 1
model = UNet()
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:
    for images in data.split(8):
        times, noise = torch.randint(0, 100, (8,)), torch.randn(8, 1, 8, 8)
        share = kept[times].view(-1, 1, 1, 1)
        loss = functional.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, times), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        run.step(images, loss)
