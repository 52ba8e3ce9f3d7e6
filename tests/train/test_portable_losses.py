"""Losses and activations of the portable leg: the formulas of torch, with the same bits in each spelling."""

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
from plumbline.train.portable.losses import LOSSES
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
def test_log_softmax_and_nll_loss_have_the_bits_of_the_cross_entropy(
    given: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """A share of 23 rows is no short binary fraction, and rounds in the gradient of a look-up."""
    scores, right = normal(*shape), labels(shape[0], *shape[2:], classes=37, ignored=given.get("ignore_index", -100))
    whole = portable(lambda x: functional.cross_entropy(x, right, **given), scores)
    parts = portable(lambda x: functional.nll_loss(functional.log_softmax(x, dim=1), right, **given), scores)
    modules = portable(lambda x: nn.NLLLoss(**given)(nn.LogSoftmax(1)(x), right), scores)
    native = trained(lambda x: functional.cross_entropy(x, right, **given), scores)
    for ours, theirs, mine, torchs in zip(whole, parts, modules, native, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours, mine)
        assert ours.shape == torchs.shape
        assert torch.allclose(ours, torchs, rtol=1e-12, atol=1e-15)


def test_scores_of_tokens_have_the_bits_of_the_cross_entropy_wherever_they_are_flattened() -> None:
    scores, right = normal(3, 7, 37), labels(3, 7, classes=37).view(-1)
    results = [
        portable(lambda x: functional.cross_entropy(x.view(-1, 37), right), scores),
        portable(lambda x: functional.nll_loss(x.view(-1, 37).log_softmax(-1), right), scores),
        portable(lambda x: functional.nll_loss(torch.log_softmax(x, -1).view(-1, 37), right), scores),
        portable(lambda x: functional.nll_loss(functional.log_softmax(x, -1).flatten(0, 1), right), scores),
    ]
    for other in results[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(results[0], other, strict=True))


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


def _scaled_by_a_hook(x: torch.Tensor) -> torch.Tensor:
    found = functional.log_softmax(x, -1)
    found.register_hook(lambda gradient: gradient * 1.001)
    return found


def _log_softmax(x: torch.Tensor) -> torch.Tensor:
    return functional.log_softmax(x, -1)


@pytest.mark.parametrize(
    ("changed", "plain"),
    [
        (lambda x: _log_softmax(x) * (1 + 1e-7), None),
        (lambda x: _log_softmax(x).add_(1e-7), lambda x: _log_softmax(x) + 1e-7),
        (lambda x: _log_softmax(x).view(-1, 37).mul_(1 + 1e-7), lambda x: _log_softmax(x) * (1 + 1e-7)),
        (lambda x: _log_softmax(x).flip(0), None),
        (lambda x: _log_softmax(x).reshape(37, 23).t(), None),
        (lambda x: functional.log_softmax(x, 0), None),
        (_scaled_by_a_hook, None),
    ],
)
def test_a_change_between_log_softmax_and_nll_loss_is_not_lost(changed: Loss, plain: Loss | None) -> None:
    """Torch itself refuses the edits in place."""
    right = labels(23, classes=37)
    loss = portable(lambda x: functional.nll_loss(changed(x), right), normal(23, 37))
    native = trained(lambda x: functional.nll_loss((plain or changed)(x), right), normal(23, 37))
    for ours, theirs in zip(loss, native, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-15)


TARGETS = normal(6, 5, seed=3)
SHARES = torch.softmax(TARGETS, -1)
PLACES = torch.tensor([0, 4, 2, -100, 1, 3])
CASES: dict[str, Loss] = {
    "binary_cross_entropy": lambda x: functional.binary_cross_entropy(torch.sigmoid(x), SHARES),
    "bce weight": lambda x: functional.binary_cross_entropy(torch.sigmoid(x), SHARES, weight=WEIGHT[:5]),
    "logits none": lambda x: functional.binary_cross_entropy_with_logits(x, SHARES, reduction="none"),
    "logits weight": lambda x: functional.binary_cross_entropy_with_logits(x, SHARES, WEIGHT[:5], reduction="sum"),
    "logits pos_weight": lambda x: functional.binary_cross_entropy_with_logits(x, SHARES, pos_weight=WEIGHT[:5]),
    "logits module": lambda x: nn.BCEWithLogitsLoss(pos_weight=WEIGHT[:5])(x, SHARES),
    "kl_div": lambda x: functional.kl_div(functional.log_softmax(x, -1), SHARES, reduction="batchmean"),
    "kl_div of zeros": lambda x: functional.kl_div(functional.log_softmax(x, -1), SHARES.round(), reduction="sum"),
    "kl_div log_target": lambda x: functional.kl_div(x, SHARES.log(), reduction="sum", log_target=True),
    "mse_loss": lambda x: functional.mse_loss(x, TARGETS),
    "l1_loss": lambda x: functional.l1_loss(x, TARGETS),
    "smooth_l1_loss": lambda x: functional.smooth_l1_loss(x, TARGETS, beta=0.7),
    "smooth_l1_loss as l1": lambda x: functional.smooth_l1_loss(x, TARGETS, beta=0.0),
    "huber_loss": lambda x: functional.huber_loss(x, TARGETS, delta=0.7),
    "label smoothing": lambda x: functional.cross_entropy(x, PLACES, label_smoothing=0.1),
    "softplus": functional.softplus, "softplus beta": lambda x: functional.softplus(x, beta=9, threshold=3),
    "logsigmoid": functional.logsigmoid, "mish": functional.mish, "silu": functional.silu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2), "glu": lambda x: functional.glu(x[:, :4]),
    "softmin": lambda x: functional.softmin(x, -1), "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "special.softmax": lambda x: torch.special.softmax(x, -1), "layer_norm": lambda x: torch.layer_norm(x, (5,)),
    "log1p": lambda x: torch.log1p(x.abs() * 1e-3), "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.cat(torch.var_mean(x, -1)), "cumsum": lambda x: x.cumsum(0),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1), "max": lambda x: x.max(-1).values,
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 2, 2])),
    "index_add": lambda x: x.index_add(1, torch.tensor([0, 2, 2]), x[:, :3], alpha=3),
    "scatter": lambda x: x.scatter(1, torch.tensor([[0, 3, 2]] * 6), x[:, :3] * 2), "root": lambda x: x.abs() ** 0.5,
    "powers": lambda x: x.abs() ** 1.5 + x**-2 + x.abs() ** -0.5,
    "logsumexp": lambda x: torch.logsumexp(x, -1), "einsum": lambda x: torch.einsum("ij,kj->ik", x, TARGETS),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_form_computes_the_formula_of_torch(name: str) -> None:
    for ours, theirs in zip(portable(CASES[name], normal(6, 5)), trained(CASES[name], normal(6, 5)), strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_called_with_the_defaults_of_torch_as_keywords_has_the_same_bits(name: str) -> None:
    """`nn.BCEWithLogitsLoss` passes every argument by its name."""
    loss = getattr(functional, name.rpartition(".")[2])
    targets = PLACES if name.endswith((".cross_entropy", ".nll_loss")) else SHARES
    parameters = inspect.signature(loss).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    short = portable(lambda x: loss(torch.sigmoid(x), targets), normal(6, 5))
    for given in (
        portable(lambda x: loss(torch.sigmoid(x), targets, **defaults), normal(6, 5)),
        portable(lambda x: loss(input=torch.sigmoid(x), target=targets), normal(6, 5)),
    ):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(short, given, strict=True))


@pytest.mark.parametrize(
    ("loss", "spelt_out"),
    [
        (CASES["logits none"], lambda x: x.clamp(min=0) - x * SHARES + (1.0 + (-x.abs()).exp()).log()),
        (CASES["mse_loss"], lambda x: ((x - TARGETS) ** 2).mean()),
        (CASES["kl_div"], lambda x: (SHARES * SHARES.log() - SHARES * x.log_softmax(-1)).sum() / len(x)),
        (CASES["logsigmoid"], lambda x: -((-x).clamp(min=0) + (-x.abs()).exp().log1p())),
        (CASES["leaky_relu"], lambda x: torch.where(x > 0, x, x * 0.2)),
    ],
)
def test_a_loss_spelt_out_in_small_operations_gives_the_same_bits(loss: Loss, spelt_out: Loss) -> None:
    for ours, theirs in zip(portable(loss, normal(6, 5)), portable(spelt_out, normal(6, 5)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["logits none", "logits pos_weight", "softplus", "logsigmoid"])
def test_a_smooth_loss_has_its_slope_at_zero(name: str) -> None:
    """A classifier whose weights are zero gives scores of exactly zero."""
    zeros = torch.zeros(6, 5, dtype=torch.float64)
    assert torch.allclose(portable(CASES[name], zeros)[1], trained(CASES[name], zeros)[1], rtol=1e-15)


def test_small_arguments_of_log1p_keep_their_digits() -> None:
    values = torch.logspace(-18, 2, 4001, dtype=torch.float64)
    values = torch.cat([values, -values[values < 1]])
    with portable_arithmetic(2):
        result, ends = values.log1p(), torch.tensor([-1.0, 0.0, torch.inf, -2.0], dtype=torch.float64).log1p()
    assert ((result - torch.log1p(values)).abs() / torch.log1p(values).abs()).max() < 1e-15
    assert ends[:3].tolist() == [-torch.inf, 0.0, torch.inf]
    assert ends[3].isnan()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: functional.cross_entropy(x, SHARES), "torch.nn.functional.cross_entropy"),
        (lambda x: functional.mse_loss(x, TARGETS, size_average=True), "torch.nn.functional.mse_loss"),
        (lambda x: functional.kl_div(x, TARGETS, reduce=True), "torch.nn.functional.kl_div"),
        (lambda x: torch.layer_norm(x, (5,), cudnn_enable=True), "torch.layer_norm"),
        (lambda x: x.scatter(1, torch.tensor([[0, 0]] * 6), x[:, :2]), "aten.scatter"),
        (lambda x: x**0.3, "aten.pow"),
    ],
)
def test_arguments_without_a_form_are_refused_by_name(call: Loss, name: str) -> None:
    with portable_arithmetic(2), pytest.raises(UnportableOperationError) as caught:
        call(normal(6, 5))
    assert caught.value.operation == name
