"""Losses and further forms of portable windows: the formulas of torch, and a refusal of all others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from plumbline.train.portable.arithmetic import portable_arithmetic
from plumbline.train.portable.operations import UnportableOperationError

Loss = Callable[[torch.Tensor], torch.Tensor]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def labels(*shape: int, classes: int, ignored: int = -100) -> torch.Tensor:
    chosen = torch.from_numpy(np.random.default_rng(5).integers(0, classes, shape))
    return torch.where(torch.arange(chosen.numel()).reshape(shape) % 5 == 3, ignored, chosen)


def trained(loss: Loss, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and its gradient; the values decide the sum where the loss has several."""
    values = values.clone().requires_grad_()
    result = loss(values)
    (result * torch.from_numpy(np.linspace(0.3, 1.7, result.numel())).reshape(result.shape)).sum().backward()
    assert values.grad is not None
    return result.detach(), values.grad


def portable(loss: Loss, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with portable_arithmetic(2):
        return trained(loss, values)


WEIGHT = normal(37, seed=2).abs() + 0.5


@pytest.mark.parametrize(
    "given",
    [
        {}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 3}, {"weight": WEIGHT},
        {"weight": WEIGHT, "reduction": "sum", "ignore_index": 3},
        {"weight": WEIGHT, "reduction": "none"},
    ],
    ids=["default", "sum", "none", "ignore_index", "weight", "weight sum ignore_index", "weight none"],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(23, 37), (6, 37, 4), (2, 37, 3, 4)])
def test_log_softmax_and_nll_loss_are_the_cross_entropy_in_another_order(
    given: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """A share of 23 rows is not a short binary fraction, and rounds in the gradient of a look-up."""
    scores, right = normal(*shape), labels(shape[0], *shape[2:], classes=37, ignored=given.get("ignore_index", -100))
    whole = portable(lambda x: functional.cross_entropy(x, right, **given), scores)
    parts = portable(lambda x: functional.nll_loss(functional.log_softmax(x, dim=1), right, **given), scores)
    modules = portable(lambda x: nn.NLLLoss(**given)(nn.LogSoftmax(1)(x), right), scores)
    native = trained(lambda x: functional.cross_entropy(x, right, **given), scores)
    for ours, theirs, mine, torchs in zip(whole, parts, modules, native, strict=True):
        assert torch.linalg.vector_norm(theirs - ours) <= 1e-13 * torch.linalg.vector_norm(ours)
        assert torch.equal(theirs, mine)
        assert ours.shape == torchs.shape
        assert torch.allclose(ours, torchs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("rows", "classes"), [(23, 2), (60, 37), (64, 30522)])
def test_a_cross_entropy_spelt_out_with_gather_is_another_order_of_operations(rows: int, classes: int) -> None:
    """The judge lets differences up to 1e-12 pass as such, with a note."""
    scores, right = normal(rows, classes), labels(rows, classes=classes)

    def spelt_out(x: torch.Tensor) -> torch.Tensor:
        counted = right >= 0
        found = functional.log_softmax(x, -1).gather(1, right.clamp(min=0)[:, None])[:, 0]
        return -(found * counted).sum() / counted.sum()

    whole = portable(lambda x: functional.cross_entropy(x, right), scores)
    parts = portable(spelt_out, scores)
    for ours, theirs in zip(whole, parts, strict=True):
        assert torch.linalg.vector_norm(theirs - ours) <= 1e-13 * torch.linalg.vector_norm(ours)


TARGETS = normal(6, 5, seed=3)
SHARES = torch.softmax(TARGETS, -1)
PLACES = torch.tensor([0, 4, 2, -100, 1, 3])
CASES: dict[str, Loss] = {
    "label smoothing": lambda x: functional.cross_entropy(x, PLACES, label_smoothing=0.1),
    "silu": functional.silu, "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1), "var": lambda x: x.var(-1),
    "indices": lambda x: x[:, [0, 2, 2]], "root": lambda x: x.abs() ** 0.5,
    "powers": lambda x: x.abs() ** 1.5 + x**-2 + x.abs() ** -0.5, "logarithm": lambda x: (1 - x.abs() / 9).log(),
    "logsumexp": lambda x: torch.logsumexp(x, -1), "einsum": lambda x: torch.einsum("ij,kj->ik", x, TARGETS),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_form_computes_the_formula_of_torch(name: str) -> None:
    for ours, theirs in zip(portable(CASES[name], normal(6, 5)), trained(CASES[name], normal(6, 5)), strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_a_loss_called_with_the_defaults_of_torch_as_keywords_has_the_same_bits(name: str) -> None:
    """`nn.CrossEntropyLoss` passes arguments by their names."""
    loss = getattr(functional, name)
    parameters = inspect.signature(loss).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    short = portable(lambda x: loss(torch.sigmoid(x), PLACES), normal(6, 5))
    for given in (
        portable(lambda x: loss(torch.sigmoid(x), PLACES, **defaults), normal(6, 5)),
        portable(lambda x: loss(input=torch.sigmoid(x), target=PLACES), normal(6, 5)),
    ):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(short, given, strict=True))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: functional.cross_entropy(x, SHARES), "torch.nn.functional.cross_entropy"),
        (lambda x: functional.nll_loss(x, PLACES, size_average=True), "torch.nn.functional.nll_loss"),
        (lambda x: torch.layer_norm(x, (5,)), "aten.native_layer_norm.default"),
        (lambda x: functional.silu(x, inplace=True), "torch.nn.functional.silu"),
        (lambda x: functional.mse_loss(x, TARGETS), "aten.mse_loss.default"),
        (lambda x: functional.huber_loss(x, TARGETS), "aten.huber_loss.default"),
        (lambda x: functional.kl_div(x, SHARES, reduction="sum"), "aten.xlogy.Tensor"),
        (
            lambda x: functional.binary_cross_entropy_with_logits(x, SHARES),
            "aten.binary_cross_entropy_with_logits.default",
        ),
        (functional.mish, "aten.mish.default"),
        (functional.softplus, "aten.softplus.default"),
        (lambda x: x.cumsum(0), "aten.cumsum.default"),
        (lambda x: x.std(-1), "aten.std.correction"),
        (lambda x: x.log1p(), "aten.log1p.default"),
        (lambda x: x.scatter(1, torch.tensor([[0]] * 6), x[:, :1]), "aten.scatter.src"),
        (lambda x: x**0.3, "aten.pow"),
    ],
)
def test_arguments_without_a_form_are_refused_by_name(call: Loss, name: str) -> None:
    with portable_arithmetic(2), pytest.raises(UnportableOperationError) as caught:
        call(normal(6, 5))
    assert caught.value.operation == name
