"""Proofs of modules that nobody here wrote: nothing breaks, no bit changes, no honest module is accused."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from plumbline.schema.proof import Draws, ProofError
from plumbline.schema.tolerance import is_off, is_over
from plumbline.train.digests import read_losses
from plumbline.train.proof.distance import NO_FORM, Found
from plumbline.train.proof.modules import ModuleProofs
from plumbline.train.ranks import Ranks

WIDTH = 6
DRAWS = "draws numbers of its own"
OWN = random.Random()
"""Generator of this file."""


class _Norm(nn.Module):
    """As T5's and Llama's: sums in fp32, whatever it is given."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps, self.planted = nn.Parameter(torch.ones(WIDTH)), eps, 0.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if wide.dtype == torch.float32 and self.planted:
            wide = wide * (1 + self.planted)
        return self.weight * wide.to(hidden.dtype)


class _Noise(nn.Module):
    def __init__(self, draw: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.draw = nn.Linear(WIDTH, WIDTH), draw

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden) + self.draw(hidden)


class _Drawing(_Noise):
    """Draws from a generator that it keeps, or that its file does."""

    def __init__(self, own: Any, draw: Callable[[Any], float]) -> None:
        super().__init__(lambda _: draw(self.own if self.own is not None else OWN))
        self.own = own


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(hidden) * self.calls


class _Cached(nn.Module):
    """Appends to a cache that it is given, as attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, cache: Any) -> torch.Tensor:
        cache.values.append(self.inner(hidden))
        return torch.stack(cache.values).sum(0)


class _Strict(nn.Module):
    """Has a code that takes one format alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        assert hidden.dtype == torch.float32, "takes fp32"
        return self.inner(hidden)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output, (last, _) = self.inner(hidden[:, None])
        return output[:, 0] + last[0]


class _Tied(nn.Module):
    """Uses the weight of a module that it also calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.inner(hidden), self.inner.weight)


class _Scored(nn.Module):
    """Has a weight of its own, and a child whose input is another one."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.weight, self.share = nn.Parameter(torch.eye(WIDTH) * 0.5), share
        self.inner = nn.Linear(WIDTH if share else 2 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        given = hidden * self.share if self.share else torch.cat((hidden, hidden), -1)
        return functional.linear(self.inner(given), self.weight)


class _Model(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.first(hidden)
        if isinstance(self.middle, _Cached):
            return self.last(self.middle(hidden, SimpleNamespace(values=[])))
        return self.last(self.middle(hidden))


class _Images(nn.Module):
    def __init__(self, *inner: nn.Module, side: int = WIDTH) -> None:
        super().__init__()
        self.inner, self.side = nn.Sequential(nn.Conv2d(1, WIDTH, 3, padding=1), *inner), side

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        places = torch.arange(self.side**2, dtype=torch.float32).sin().view(self.side, self.side)
        return self.inner(hidden[:, :1, None, None] + places).mean((2, 3))


SHAPES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (lambda: nn.BatchNorm1d(WIDTH), ""),
    "images": (lambda: _Images(nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True), nn.GroupNorm(2, WIDTH)), ""),
    "large images": (lambda: _Images(nn.BatchNorm2d(WIDTH), nn.ReLU(), side=256), ""),
    "large images without a norm": (lambda: _Images(nn.ReLU(), side=256), ""),
    "dropped channels": (lambda: _Images(nn.Dropout2d(0.3), side=64), ""),
    "self-normalizing dropout": (lambda: nn.AlphaDropout(0.3), DRAWS),
    "a norm in fp32": (_Norm, ""),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), "is used by a function"),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), "is used by a function"),
    "in place": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(inplace=True)), ""),
    "own draws": (lambda: _Noise(torch.rand_like), DRAWS),
    "draws of NumPy": (lambda: _Noise(lambda _: float(np.random.rand())), DRAWS),  # noqa: NPY002
    "draws of Python": (lambda: _Noise(lambda _: random.random()), DRAWS),
    "draws of its own Python": (lambda: _Drawing(random.Random(1), lambda own: own.random()), DRAWS),
    "draws of its own NumPy": (lambda: _Drawing(np.random.default_rng(1), lambda own: own.random()), DRAWS),
    "draws of its older NumPy": (lambda: _Drawing(np.random.RandomState(1), lambda own: own.rand()), DRAWS),
    "draws of its own torch": (
        lambda: _Drawing(torch.Generator().manual_seed(1), lambda own: float(torch.rand((), generator=own))),
        DRAWS,
    ),
    "draws of its file": (lambda: _Drawing(None, lambda own: own.random()), DRAWS),
    "a counter": (_Counting, "keeps values of its forward pass"),
    "a cache": (_Cached, "is given an object that it may change"),
    "several outputs": (_Recurrent, "several outputs have gradients"),
    "a weight of a function": (_Tied, "is used by a function"),
    "a weight beside a child": (lambda: _Scored(2.0), ""),
    "a weight beside a wider child": (lambda: _Scored(0.0), ""),
    "a format that is asserted": (_Strict, "AssertionError: takes fp32"),
    "attention": (lambda: nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.1), DRAWS),
    "no parameters": (nn.Identity, ""),
    "a lazy module": (lambda: nn.LazyLinear(WIDTH), ""),
    "called twice": (lambda: nn.Sequential(*[nn.Linear(WIDTH, WIDTH)] * 2), ""),
    "an extreme norm": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softmax(-1), nn.LogSigmoid()), ""),
}


def _states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002


def _step(make: Callable[[], nn.Module], *, proven: bool, rows: int = 5, planted: float = 0.0) -> tuple[Any, ...]:
    """Return errors, losses of proof, state and generators after two training steps."""
    torch.manual_seed(3)
    OWN.seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    model, errors, lost, draws = _Model(make()), list[ProofError](), dict[str, str](), list[Draws]()
    model(torch.randn(2, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for module in model.modules():
        if isinstance(module, _Norm):
            module.planted = planted
    for _ in range(2):
        found: list[Found] = []
        proofs = ModuleProofs(model, Ranks(), found, is_foreign=True) if proven else None
        if proofs is not None:
            proofs.feeds("fp32")
        loss = model(torch.randn(rows, WIDTH)).square().sum()
        if proofs is not None:
            proofs.forward_done()
        optimizer.zero_grad()
        loss.backward()
        if proofs is not None:
            names = {value: name for name, value in model.named_parameters()}
            proofs.gradients(names, {value: value.grad for value in names if value.grad is not None}, 1.0)
            proofs.close()
            lost |= proofs.lost
            draws += proofs.draws.summary()
        read = zip(found, read_losses([each.error for each in found]), strict=True)
        errors += [
            ProofError(stage=each.stage, name=each.name, kind=each.kind, dtype="float32", terms=each.terms, error=error)
            for each, error in read
            if error != NO_FORM
        ]
        optimizer.step()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert not any(map(is_off, draws))
    return errors, lost, state, [getattr(model.middle, "calls", 0), *_states()]


@pytest.mark.parametrize("name", SHAPES)
def test_a_foreign_module_trains_the_same_bits_and_is_proven_or_lost(name: str) -> None:
    make, reason = SHAPES[name]
    errors, lost, state, generators = _step(make, proven=True)
    _, _, plain, others = _step(make, proven=False)
    assert all(torch.equal(value, plain[key]) for key, value in state.items())
    assert generators == others
    assert not [error for error in errors if is_over(error)]
    assert (reason in lost.values()) if reason else not lost
    assert {("forward", "first"), ("gradient", "last.weight")} <= {(error.stage, error.name) for error in errors}


def test_an_empty_batch_breaks_nothing() -> None:
    errors, _, state, _ = _step(lambda: nn.Linear(WIDTH, WIDTH), proven=True, rows=0)
    assert not [error for error in errors if is_over(error)]
    assert all(bool(value.isfinite().all()) for value in state.values())


def test_a_norm_in_fp32_that_is_wrong_is_found() -> None:
    errors, *_ = _step(_Norm, proven=True, planted=1e-5)
    first = next(error for error in errors if is_over(error))
    assert (first.stage, first.name) == ("forward", "middle")


def test_a_module_that_is_not_twice_the_same_is_no_rounding() -> None:
    hidden = random.Random(1)
    errors, *_ = _step(lambda: _Noise(lambda _: 1e-3 * hidden.random()), proven=True)
    assert {"_Noise", "_Model"}.isdisjoint(error.kind for error in errors)
    assert ("gradient", "middle.inner.weight") in {(error.stage, error.name) for error in errors}
    assert not [error for error in errors if is_over(error)]
