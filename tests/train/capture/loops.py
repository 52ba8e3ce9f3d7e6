"""A small decoder in a loop of nobody's framework, with planted faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from plumbline.train.capture import capture

WIDTH, WORDS, ROWS, LENGTH, STEPS = 16, 60, 8, 12, 8


class Attention(nn.Module):
    scale = WIDTH**-0.5

    def __init__(self) -> None:
        super().__init__()
        self.given, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.given(hidden).chunk(3, dim=-1)
        return self.out(functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale))


class Block(nn.Module):
    def __init__(self, approximate: str, eps: float, drop: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH, eps=eps) for _ in range(2)])
        self.attention, self.up, self.down = Attention(), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.act, self.drop = nn.GELU(approximate=approximate), nn.Dropout(drop)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.norms[0](hidden))
        return hidden + self.drop(self.down(self.act(self.up(self.norms[1](hidden)))))


class Decoder(nn.Module):
    def __init__(self, approximate: str = "none", eps: float = 1e-5, drop: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(approximate, eps, drop) for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


FAULTS: dict[str, str] = {
    "": "", "gelu": "operator", "eps": "operator", "scale": "operator", "dropout": "rng", "seed": "weights.init",
    "order": "data.order", "token": "data.content", "labels": "data.labels", "rate": "schedule", "decay": "optimizer",
    "betas": "optimizer", "clip": "gradient", "accumulates": "gradient", "frozen": "gradient", "skipped": "optimizer",
    "smoothing": "loss", "moved": "optimizer", "unheld": "optimizer", "backward": "gradient",
    "late": "gradient",
}  # fmt: skip
"""Planted fault and the cause to be named."""
CALLS = {
    "gelu": "blocks.0.act calls gelu(approximate='tanh') instead of gelu(approximate='none')",
    "eps": "blocks.0.norms.0 calls layer_norm(eps=0.0001) instead of layer_norm(eps=1e-05)",
    "scale": "blocks.0.attention calls scaled_dot_product_attention(scale=0.2525) instead of "
    "scaled_dot_product_attention(scale=0.25)",
}
"""Planted fault and its call, which is named too."""


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 0.5


class _WrongLinear(nn.Linear):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return Halved.apply(functional.linear(value, self.weight, self.bias))


def make(fault: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(8 if fault == "seed" else 7)
    model = Decoder(
        "tanh" if fault == "gelu" else "none", 1e-4 if fault == "eps" else 1e-5, 0.2 if fault == "dropout" else 0.1
    )
    if fault == "backward":
        model.blocks[1].up.__class__ = _WrongLinear
    if fault == "scale":
        model.blocks[0].attention.scale = 1.01 * WIDTH**-0.5
    if fault == "frozen":
        model.blocks[1].down.weight.requires_grad_(False)
    held = [value for name, value in model.named_parameters() if fault != "unheld" or name != "head.weight"]
    given = {"weight_decay": 0.02 if fault == "decay" else 0.01}
    given |= {"betas": (0.9, 0.98)} if fault == "betas" else {}
    return model, torch.optim.AdamW(held, lr=2e-3, **given)


def batch(step: int, fault: str, generator: torch.Generator) -> torch.Tensor:
    ids = torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator)
    if fault == "order" and step == 2:
        ids = ids.flip(0)
    if fault == "token" and step == 2:
        ids[3, 4] = (ids[3, 4] + 1) % WORDS
    return ids


def train(folder: Path | None, fault: str = "", steps: int = STEPS, **settings: Any) -> tuple[nn.Module, Any]:
    """Train with a record of the first steps, or without; return the model and its optimizer."""
    model, optimizer = make(fault)
    generator = torch.Generator().manual_seed(1)
    run = capture(folder, model, optimizer, steps=STEPS, seed=7, **settings).__enter__() if folder is not None else None
    for step in range(steps):
        ids = batch(step, fault, generator)
        labels = ids[:, 1:].clone()
        if fault == "labels" and step == 2:
            labels[0] = labels[0].flip(0)
        if fault == "rate" and step >= 2:
            optimizer.param_groups[0]["lr"] = 1e-3
        logits = model(ids)[:, :-1]
        loss = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=0.02 if fault == "smoothing" else 0.0
        )
        if fault != "accumulates":
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2 if fault == "clip" else 0.3)
        if fault == "late" and step >= 2:  # recorded from step 3 on
            model.head.weight.grad.mul_(1.02)
        if fault != "skipped" or step != 2:
            optimizer.step()
        if fault == "moved" and step == 0:
            with torch.no_grad():
                model.head.weight.mul_(1 + 1e-6)
        if step == 4:
            model.eval()
            with torch.no_grad():
                model(ids)
            model.train()
        if run is not None:
            run.step({"ids": ids, "labels": labels}, loss)
    return model, optimizer


if __name__ == "__main__":
    start = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    for name in FAULTS:
        train(Path(sys.argv[1]) / (name or "plain"), name, start=start if name != "seed" else None)
