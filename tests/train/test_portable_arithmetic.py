"""Portable arithmetic: one result in any order, library and layout; an error for what has no portable form."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from plumbline.train.failure import TrainingFailedError
from plumbline.train.portable import functions, products
from plumbline.train.portable.arithmetic import PortableFloat, portable_arithmetic
from plumbline.train.portable.operations import UnportableOperationError
from plumbline.train.portable.products import (
    check_products,
    exact_product,
    summed_as_integers,
    training_products,
    tree_sum,
)
from plumbline.train.selfcheck import shipped_spec

CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("inner", [1, 7, 768, 3072])
def test_a_product_has_one_result_in_any_order_and_any_library(
    monkeypatch: pytest.MonkeyPatch, slices: int, inner: int
) -> None:
    left, right = normal(24, inner), normal(inner, 40, seed=1)
    right[:, 3] *= 1e-30
    pieces = products._pieces
    result = exact_product(left, right, slices)
    for seed in range(8):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(inner))
        assert torch.equal(exact_product(left[:, order], right[order], slices), result)
    with monkeypatch.context() as patch:
        patch.setattr(products, "_has_slow_fp64", lambda _: True)
        used = []
        patch.setattr(products, "_pieces", lambda values: used.append(1) or pieces(values))
        assert torch.equal(exact_product(left, right, slices), result)
        largest = torch.full((3, inner), 1 - 2.0**-53, dtype=torch.float64)
        in_pieces = exact_product(largest, -largest.t(), slices)
    assert bool(used) is (inner >= 128)
    assert torch.equal(exact_product(largest, -largest.t(), slices), in_pieces)
    numpys = torch.matmul
    try:  # NumPy's library is OpenBLAS, torch's is not
        torch.matmul = lambda a, b: torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
        assert torch.equal(exact_product(left, right, slices), result)
    finally:
        torch.matmul = numpys
    limit = {1: 5e-7 * 8, 2: 1e-11, 3: 1e-15}[slices]
    error = (result - left @ right).abs() / (left.abs() @ right.abs())
    assert error.max() < limit


def test_plain_fp64_products_depend_on_the_order() -> None:
    """What the grid is for: without it the test above would hold by chance alone."""
    left, right = normal(24, 768), normal(768, 40, seed=1)
    order = torch.from_numpy(np.random.default_rng(0).permutation(768))
    assert not torch.equal(left[:, order] @ right[order], left @ right)


def test_extreme_rows_stay_finite_and_zeros_stay_zero() -> None:
    left, right = torch.zeros(3, 4, dtype=torch.float64), normal(4, 5)
    left[1], left[2] = 1e-308, 1e300
    result = exact_product(left, right, 2)
    assert torch.isfinite(result).all()
    assert (result[0] == 0).all()
    assert torch.allclose(result[2], left[2] @ right, rtol=1e-9)


def test_a_device_whose_fp64_products_are_emulated_from_fewer_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = training_products(shipped_spec("sequence-classification"))
    check_products(CPU)
    check_products(CPU, sizes)
    product, smallest = torch.matmul, 0

    def emulated(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """A library that emulates large products alone."""
        is_emulated = left.shape[-2] * right.shape[-1] > smallest
        return product(left.float(), right.float()).double() if is_emulated else product(left, right)

    monkeypatch.setattr(torch, "matmul", emulated)
    with pytest.raises(TrainingFailedError, match="not exact"):
        check_products(CPU)
    smallest = 96 * 96
    check_products(CPU)
    with pytest.raises(TrainingFailedError, match="1024 x 64 by 64 x 96 are not exact"):
        check_products(CPU, ((1, 1024, 64, 96),))


@pytest.mark.parametrize(
    ("name", "values", "limit"),
    [
        ("exp", torch.linspace(-700, 700, 40_001, dtype=torch.float64), 4e-16),
        ("log", torch.logspace(-300, 300, 40_000, dtype=torch.float64), 4e-16),
        ("erf", torch.linspace(-7, 7, 40_000, dtype=torch.float64), 2e-14),
        ("sigmoid", torch.linspace(-30, 30, 40_001, dtype=torch.float64), 5e-16),
        ("tanh", torch.cat([-torch.logspace(-2, 1, 999), torch.logspace(-2, 1, 999)]).double(), 3e-14),
    ],
)
def test_functions_agree_with_the_library(name: str, values: torch.Tensor, limit: float) -> None:
    result, right = getattr(functions, name)(values), getattr(torch, name)(values)
    assert ((result - right).abs() / right.abs()).max() < limit


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_angles_agree_with_the_library(name: str) -> None:
    values = torch.cat([torch.linspace(-9, 9, 20_001), torch.linspace(0, 8192, 20_001), torch.tensor([9.9e5])]).double()
    result, right = getattr(functions, name)(values), getattr(torch, name)(values)
    assert (result - right).abs().max() < 3e-16


@pytest.mark.parametrize(
    ("name", "values", "right"),
    [
        ("exp", [-math.inf, -1.7e308, 0.0, 800.0, math.inf, math.nan], [0.0, 0.0, 1.0, math.inf, math.inf, math.nan]),
        ("log", [0.0, 1.0, math.inf, -1.0, math.nan], [-math.inf, 0.0, math.inf, math.nan, math.nan]),
        ("erf", [-math.inf, 0.0, math.inf, math.nan], [-1.0, 0.0, 1.0, math.nan]),
        ("tanh", [-math.inf, 0.0, math.inf, math.nan], [-1.0, 0.0, 1.0, math.nan]),
        ("cos", [-math.inf, 0.0, 2e6, math.nan], [math.nan, 1.0, math.nan, math.nan]),
        ("sin", [-math.inf, 0.0, 2e6, math.nan], [math.nan, 0.0, math.nan, math.nan]),
    ],
)
def test_functions_at_their_ends(name: str, values: list[float], right: list[float]) -> None:
    result = getattr(functions, name)(torch.tensor(values, dtype=torch.float64)).tolist()
    assert result == pytest.approx(right, nan_ok=True, abs=0)


def test_each_ieee_operation_is_rounded_as_ieee_says() -> None:
    """Python's floats are the reference: torch's own square root comes from a vector library, and differs."""
    spread = 10.0 ** torch.from_numpy(np.random.default_rng(2).integers(-5, 5, 20_000)).double()
    left, right = normal(20_000).abs() * spread, normal(20_000, seed=1) * spread
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    with portable_arithmetic(2):
        result = {"mul": left * right, "add": left + right, "sub": left - right, "div": left / right,
                 "sqrt": left.sqrt(), "half power": left**0.5, "rsqrt": left.rsqrt()}  # fmt: skip
    expected: dict[str, Callable[[float, float], float]] = {
        "mul": lambda a, b: a * b, "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "div": lambda a, b: a / b,
        "sqrt": lambda a, _: math.sqrt(a), "half power": lambda a, _: math.sqrt(a),
        "rsqrt": lambda a, _: 1 / math.sqrt(a),
    }  # fmt: skip
    for name, operation in expected.items():
        wrong = sum(value != operation(*pair) for value, pair in zip(result[name].tolist(), pairs, strict=True))
        assert wrong == 0, f"{name}: {wrong} of {len(pairs)} values"
    with portable_arithmetic(2):
        ends = torch.tensor([0.0, math.inf, -1.0, math.nan], dtype=torch.float64).sqrt()
    assert ends[:2].tolist() == [0.0, math.inf]
    assert ends[2:].isnan().all()


def test_sums_follow_the_shape_and_not_the_layout() -> None:
    values = normal(5, 13, 7) * torch.logspace(-8, 8, 7, dtype=torch.float64)
    assert torch.equal(tree_sum(values, [1]), tree_sum(values.transpose(0, 1).contiguous().transpose(0, 1), [1]))
    assert tree_sum(values, [0, 2], keepdim=True).shape == (1, 13, 1)
    assert torch.allclose(tree_sum(values, None), values.sum())
    assert tree_sum(values[:0], [0]).shape == (13, 7)


def test_a_choice_along_the_last_axis_has_its_gradient() -> None:
    """Its backward pass is an `index_put` whose first indices are `None`."""
    values = normal(3, 4, 5).double().requires_grad_()
    order = torch.tensor([4, 0, 0, 2])
    with portable_arithmetic(2):
        (values[..., order] * normal(3, 4, 4).double()).sum().backward()
    wanted = values.detach().clone().requires_grad_()
    (wanted[..., order] * normal(3, 4, 4).double()).sum().backward()
    assert values.grad is not None
    assert wanted.grad is not None
    assert torch.allclose(values.grad, wanted.grad, rtol=1e-12)


def test_scattered_sums_do_not_depend_on_the_order_of_rows() -> None:
    values = normal(1000, 3) * 1e-5
    places = torch.from_numpy(np.random.default_rng(1).integers(0, 4, 1000))
    order = torch.from_numpy(np.random.default_rng(2).permutation(1000))

    def scattered(index: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda whole: whole.new_zeros((4, 3)).index_add(0, index, whole)

    result = summed_as_integers(values, 1000, scattered(places))
    assert torch.equal(summed_as_integers(values[order], 1000, scattered(places[order])), result)
    assert torch.allclose(result, torch.zeros(4, 3, dtype=torch.float64).index_add(0, places, values), rtol=1e-12)


def test_powers_on_the_host_are_running_products() -> None:
    beta = PortableFloat(0.999)
    product = 1.0
    for _ in range(7):
        product *= 0.999
    assert float(beta**7.0) == product
    assert float((1 - beta**7) ** 0.5) == math.sqrt(1 - product)
    with pytest.raises(ValueError, match="no portable form"):
        _ = beta**0.3


@pytest.mark.parametrize(
    "call",
    [
        torch.sinh, lambda x: torch.cumprod(x, 0),
        lambda x: torch.randn_like(x) + x, lambda x: torch.bernoulli(x.abs().clamp(max=1)),
        lambda x: x + torch.rand(3, dtype=torch.float64), lambda x: x**0.3, lambda x: torch.softmax(x, 0).prod(),
    ],
)  # fmt: skip
def test_an_operation_without_a_portable_form_is_an_error_that_names_it(call: Callable[[torch.Tensor], Any]) -> None:
    with portable_arithmetic(2), pytest.raises(UnportableOperationError) as caught:
        call(normal(3))
    assert "has no portable form" in str(caught.value)
    assert caught.value.operation.startswith(("aten.", "torch."))


def test_a_state_that_is_copied_or_loaded_computes_nothing() -> None:
    """A resume restores the optimizer's state: storages are read, and given to new tensors."""
    state = {"exp_avg": normal(5, 3), "step": torch.tensor(3.0), "rows": torch.arange(4)[1:]}
    saved = io.BytesIO()
    with portable_arithmetic(2):
        torch.save(state, saved)
        saved.seek(0)
        for found in (copy.deepcopy(state), torch.load(saved, weights_only=True)):
            assert all(torch.equal(found[name], value) for name, value in state.items())


def _spelt_out(values: torch.Tensor, layer: nn.LayerNorm) -> torch.Tensor:
    centred = values - values.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + layer.eps)
    normed = scaled * layer.weight + layer.bias
    raised = (normed - normed.amax(-1, keepdim=True)).exp()
    share = raised / raised.sum(-1, keepdim=True)
    return share * (0.5 + 0.5 * torch.erf(share * 0.7071067811865476))


def test_a_formula_spelt_out_in_small_operations_gives_the_same_bits() -> None:
    layer = nn.LayerNorm(12).double()
    results = []
    for compute in (lambda x: functional.gelu(functional.softmax(layer(x), dim=-1)), lambda x: _spelt_out(x, layer)):
        values = normal(6, 12).requires_grad_()
        layer.zero_grad()
        with portable_arithmetic(2):
            output = compute(values)
            (output * normal(6, 12, seed=3)).sum().backward()
        results.append([output.detach(), values.grad, layer.weight.grad, layer.bias.grad])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
