"""Shapes of training loops that teams have, each without anything of Plumbline in it but `run.step()`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.optimization import Adafactor

STEPS = 4
Run = Callable[..., None]
"""Ends a step: `run(batch, loss)`, or with no argument."""


def _net(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Linear(8, 2))


def _data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(5, 6), torch.randint(0, 2, (5,))) for _ in range(STEPS + 2)]


def _trains(
    model: nn.Module, optimizer: Any, loss: Any = None, *, clip: bool = False, micro: int = 1, after: Any = None
) -> Any:
    """Return a shape that trains by the loss of rows and labels, or by the cross entropy of the model's outputs.

    `after` is called behind each update.
    """

    def loop(run: Run) -> None:
        for images, labels in _data():
            optimizer.zero_grad()
            for piece, wanted in zip(images.split(5 // micro), labels.split(5 // micro), strict=True):
                (loss(piece, wanted) if loss else functional.cross_entropy(model(piece), wanted)).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if after:
                after()
            run()

    return model, optimizer, loop


def plain() -> Any:
    model = _net(nn.GELU())
    return _trains(model, torch.optim.AdamW(model.parameters(), 1e-2), clip=True)


def _updated_by(make: Callable[..., torch.optim.Optimizer], **settings: Any) -> Callable[[], Any]:
    """Return a shape whose weights another optimizer updates, by settings of its own."""

    def shape() -> Any:
        model = _net(nn.GELU())
        return _trains(model, make(model.parameters(), **settings))

    return shape


def batch_norm() -> Any:
    model = _net(nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2))
    return _trains(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3))


def micro_batches() -> Any:
    model = _net(nn.GELU())
    return _trains(model, torch.optim.AdamW(model.parameters(), 1e-2), micro=5)


class AlwaysDropout(nn.Dropout):
    """Draws in evaluation mode, too."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return functional.dropout(value, self.p)


def evaluations() -> Any:
    """Evaluates with and without gradients between the steps."""
    model = _net(AlwaysDropout(0.1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=0.1)

    def loop(run: Run) -> None:
        for images, labels in _data():
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                model(images[:2])
            with torch.inference_mode():
                model(images[:3])
            model(images[:1])
            model.train()
            run(None, loss)

    return model, optimizer, loop


def lbfgs() -> Any:
    model = _net(nn.Tanh())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def loop(run: Run) -> None:
        for images, labels in _data():

            def closure(images: torch.Tensor = images, labels: torch.Tensor = labels) -> torch.Tensor:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images), labels)
                loss.backward()
                return loss

            optimizer.step(closure)
            run()

    return model, optimizer, loop


class _Own(torch.optim.Adam):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def twice_in_a_closure() -> Any:
    """Calls its model twice in the closure of an optimizer that calls it once, as a contrast of two views.

    The hooks of a class's update run also for that of the class from which it inherits.
    """
    model = _net(nn.Tanh(), nn.Dropout(0.1))
    torch.optim.Adam(model.parameters())
    optimizer = _Own(model.parameters(), 1e-2)

    def loop(run: Run) -> None:
        for images, _ in _data():

            def closure(images: torch.Tensor = images) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(images[:2]).mean() - model(images[2:]).mean()).square()
                loss.backward()
                return loss

            optimizer.step(closure)
            run()

    return model, optimizer, loop


def several_updates() -> Any:
    """Updates twice a step, as critics do."""
    model = _net(nn.Tanh())
    optimizer = torch.optim.Adadelta(model.parameters())

    def loop(run: Run) -> None:
        for images, labels in _data():
            for rows, wanted in zip(images.split(3), labels.split(3), strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(model(rows), wanted).backward()
                optimizer.step()
            run()

    return model, optimizer, loop


def by_hand() -> Any:
    """Updates its weights itself."""
    model = _net(nn.ReLU())

    def loop(run: Run) -> None:
        for images, labels in _data():
            model.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            with torch.no_grad():
                for value in model.parameters():
                    value.sub_(0.1 * value.grad)
            run()

    return model, None, loop


def adversaries() -> Any:
    """A generator and a discriminator with an optimizer each."""
    models = {"generator": nn.Linear(3, 6), "judge": _net(nn.LeakyReLU())}
    optimizers = [torch.optim.Adam(each.parameters(), 1e-2) for each in models.values()]

    def loop(run: Run) -> None:
        for images, _ in _data():
            made = models["generator"](torch.randn(5, 3))
            optimizers[1].zero_grad()
            real = functional.cross_entropy(models["judge"](images), torch.ones(5, dtype=torch.int64))
            fake = functional.cross_entropy(models["judge"](made.detach()), torch.zeros(5, dtype=torch.int64))
            (real + fake).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            functional.cross_entropy(models["judge"](made), torch.ones(5, dtype=torch.int64)).backward()
            optimizers[0].step()
            run()

    return models, optimizers, loop


def scaled() -> Any:
    """Half precision by autocast, with a loss scale that skips its first step."""
    model = _net(nn.GELU())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    def loop(run: Run) -> None:
        for images, labels in _data():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update(2.0**4)
            run()

    return model, optimizer, loop, {"scaler": scaler}


def within_autocast() -> Any:
    """Calls its backward pass within autocast, which torch advises against: gradients of an fp32 head get bf16."""

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            hidden = self.inner(rows).float()
            with torch.autocast("cpu", enabled=False):
                return self.head(hidden)

    model = Headed()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def loop(run: Run) -> None:
        for images, labels in _data():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            run()

    return model, optimizer, loop


def sparse() -> Any:
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(24, 2))
    loss = lambda _, labels: functional.cross_entropy(model(torch.randint(0, 20, (5, 3))), labels)  # noqa: E731
    return _trains(model, torch.optim.SGD(model.parameters(), 0.1), loss)


def recurrent() -> Any:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cells, self.head = nn.Embedding(20, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
            _, (last, _) = self.cells(packed)
            return self.head(last[0])

    model, lengths = Tagger(), torch.tensor([4, 2, 3, 1, 4])
    loss = lambda _, labels: functional.cross_entropy(model(torch.randint(0, 20, (5, 4)), lengths), labels)  # noqa: E731
    return _trains(model, torch.optim.Adam(model.parameters(), 1e-2), loss)


def carried() -> Any:
    """Carries a hidden state from step to step."""
    model = nn.GRUCell(6, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop(run: Run) -> None:
        hidden = torch.zeros(5, 8)
        for images, _ in _data():
            hidden = model(images, hidden)
            optimizer.zero_grad()
            hidden.square().mean().backward()
            optimizer.step()
            hidden = hidden.detach()
            run()

    return model, optimizer, loop


def second_order() -> Any:
    """Penalises the slope of its own loss."""
    model = _net(nn.Tanh())

    def penalised(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        given = images.clone().requires_grad_()
        loss = functional.cross_entropy(model(given), labels)
        (slope,) = torch.autograd.grad(loss, given, create_graph=True)
        return loss + slope.square().sum()

    return _trains(model, torch.optim.SGD(model.parameters(), 0.1), penalised)


def experts() -> Any:
    """Routes each row to one of several modules, some of which get none."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList([nn.Linear(6, 8) for _ in range(4)])
            self.head = nn.Linear(8, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            chances = self.gate(rows).softmax(-1)
            best = chances.argmax(-1)
            made = torch.zeros(len(rows), 8)
            for place, expert in enumerate(self.experts):
                mine = best == place
                made = made.index_put((mine.nonzero()[:, 0],), expert(rows[mine]) * chances[mine, place, None])
            return self.head(made)

    model = Mixture()
    return _trains(model, torch.optim.AdamW(model.parameters(), 1e-2))


def averaged() -> Any:
    """Clamps its weights after each update, and keeps an average of them."""
    model = _net(nn.ReLU())
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-2)
    average = torch.optim.swa_utils.AveragedModel(model)

    def clamp() -> None:
        with torch.no_grad():
            for value in model.parameters():
                value.clamp_(-0.3, 0.3)
        average.update_parameters(model)

    return _trains(model, optimizer, after=clamp)


def raising() -> Any:
    """Meets an error in a forward pass, and tries again."""

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.tries = _net(nn.ReLU()), 0

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.tries += 1
            if self.tries % 3 == 1:
                self.inner[0](rows)
                raise RuntimeError("out of memory, says the loop")
            return self.inner(rows)

    model = Careful()

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        try:
            logits = model(images)
        except RuntimeError:
            logits = model(images)
        return functional.cross_entropy(logits, labels)

    return _trains(model, torch.optim.SGD(model.parameters(), 0.1), loss)


def noisy() -> Any:
    """Draws noise of its own in the forward pass, by torch, NumPy and Python."""

    class Noise(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            own = float(np.random.rand()) + random.random()  # noqa: NPY002 - as teams do
            return rows + 0.01 * torch.randn_like(rows) * own

    model = _net(Noise())
    return _trains(model, torch.optim.SGD(model.parameters(), 0.1))


def checkpointed() -> Any:
    """Computes a part of its forward pass again in the backward pass."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU())
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.inner, self.first(rows), use_reentrant=False))

    model = Again()
    return _trains(model, torch.optim.AdamW(model.parameters(), 1e-2))


def graph(*, sparse: bool = False) -> Any:
    """Mixes its nodes by a matrix of them, and drops single features by a function for channels."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop, self.head = nn.Linear(6, 8), nn.Dropout2d(0.3), nn.Linear(8, 2)

        def forward(self, nodes: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
            return self.head(matrix @ self.drop(matrix @ self.inner(nodes)))

    model, matrix = Mixed(), torch.eye(5) / 3 + torch.ones(5, 5).tril() / 7
    given = matrix.to_sparse() if sparse else matrix
    loss = lambda nodes, labels: functional.cross_entropy(model(nodes, given), labels)  # noqa: E731
    return _trains(model, torch.optim.AdamW(model.parameters(), 1e-2), loss)


SHAPES: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        plain, batch_norm, micro_batches, evaluations, lbfgs, twice_in_a_closure, several_updates, by_hand, adversaries,
        scaled, within_autocast, sparse, recurrent, carried, second_order, experts, averaged, raising, noisy,
        checkpointed, graph,
    )
} | {
    "sparse_graph": lambda: graph(sparse=True),
    "adafactor": _updated_by(torch.optim.Adafactor),
    "transformers_adafactor": _updated_by(Adafactor),
    "decoupled_adam": _updated_by(torch.optim.Adam, weight_decay=0.1, decoupled_weight_decay=True),
}  # fmt: skip
