"""A speech encoder with connectionist temporal classification: `python speech.py RECORD`."""

import sys

import torch
from torch import nn
from torch.nn import functional

from plumbline import capture


class Encoder(nn.Module):
    def __init__(self, letters: int = 12, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.convolutions = nn.ModuleList([nn.Conv1d(33, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)])
        self.places = nn.Parameter(torch.randn(64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        power = torch.stft(waves, 64, 16, window=self.window, return_complex=True).abs().square()
        hidden = (power + 1e-4).log()
        for convolution in self.convolutions:
            hidden = functional.gelu(convolution(hidden))
        hidden = hidden.transpose(1, 2) + self.places[: hidden.shape[2]]
        lengths = lengths // 32 + 1
        hidden = self.layers(hidden, src_key_padding_mask=torch.arange(hidden.shape[1]) >= lengths[:, None])
        return self.head(hidden).log_softmax(-1), lengths


torch.manual_seed(7)
model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
with capture(sys.argv[1], model, optimizer, steps=10, seed=7) as run:
    for _ in range(10):
        lengths = torch.randint(400, 801, (6,))
        waves = (torch.arange(800) * torch.rand(6, 1)).sin() * (torch.arange(800) < lengths[:, None])
        letters, sizes = torch.randint(1, 12, (6, 5)), torch.randint(2, 6, (6,))
        chances, times = model(waves, lengths)
        loss = functional.ctc_loss(chances.transpose(0, 1), letters, times, sizes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        run.step({"waves": waves, "lengths": lengths, "labels": letters}, loss)
