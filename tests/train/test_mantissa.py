"""Mantissa bits that operators keep: every factor, at every shape, in compiled code, and of the attention in use."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from plumbline.train.compat.transformers import attention_function
from plumbline.train.machine.mantissa import kept_part, measure_attention, measure_mantissa_bits
from plumbline.train.models.dropout import use_plain_attention
from plumbline.train.models.model import build_model
from plumbline.train.selfcheck import shipped_spec


def test_a_step_that_is_rounded_up_is_not_kept() -> None:
    """TF32 with ties away from zero makes the tenth bit of an eleventh."""
    eleventh, tenth = 1 + 2.0**-11, 1 + 2.0**-10
    assert kept_part(tenth, eleventh) == 0
    assert kept_part(1.0, eleventh) == 0
    assert kept_part(tenth, tenth) == 2.0**-10


def test_bits_are_measured_at_the_trainings_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that rounds only large products is not missed."""
    sizes = ((1, 128, 64, 96), (1, 96, 128, 64), (4, 64, 32, 64))
    exact = ("linear", "matmul", "bmm", "linear weights", "gelu", "softmax", "layer_norm", "embedding", "cross_entropy")
    measure = partial(measure_mantissa_bits, torch.device("cpu"), sizes=sizes, layers=[(64, 96), (32, 2)])
    assert measure("fp32") == {**dict.fromkeys(exact, 23), "tanh": 22}
    assert measure("fp64")["bmm"] == 52
    assert measure("bf16")["matmul"] == 7
    plain = torch.bmm
    short = lambda left, right: plain(left.bfloat16(), right.bfloat16()).float()  # noqa: E731
    monkeypatch.setattr(torch, "bmm", lambda left, right: (short if left.shape[1] > 32 else plain)(left, right))
    found = measure("fp32")
    assert (found["bmm"], found["linear"]) == (7, 23)
    # A kernel that leaves its input as it was computes something else: it keeps no format, and says nothing.
    monkeypatch.setattr(torch.nn.functional, "layer_norm", lambda value, *_: value)
    assert "layer_norm" not in measure("fp32")


def _short(value: torch.Tensor, levels: int = 7) -> torch.Tensor:
    """Return a value in integers with a scale for each row."""
    level = value.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / levels
    return ((value / level).round() * level).to(value.dtype)


@pytest.mark.parametrize(("precision", "bits"), [("fp32", 23), ("bf16", 7)])
def test_each_factor_of_a_linear_layer_is_measured_at_every_shape(
    precision: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of one shape each have inputs or weights of four bits; compiled code has weights of eight bits."""
    linear, is_compiling = torch.nn.functional.linear, [False]

    def compiled(function: Any) -> Any:
        def run(*given: Any) -> Any:
            is_compiling[0] = True
            try:
                return function(*given)
            finally:
                is_compiling[0] = False

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    sizes, layers = ((1, 128, 64, 96),), [(64, 96), (64, 64), (96, 64), (64, 2)]
    measure = partial(measure_mantissa_bits, torch.device("cpu"), precision, sizes, layers, compiled=True)
    factors = ("linear", "linear weights", "compiled linear", "compiled linear weights")
    assert [measure()[name] for name in factors] == [bits] * 4

    def narrow(left: torch.Tensor, right: torch.Tensor, *_: Any) -> torch.Tensor:
        if is_compiling[0]:
            return linear(left, _short(right, 127))
        return linear(_short(left) if right.shape == (64, 96) else left, _short(right) if len(right) == 2 else right)

    monkeypatch.setattr(torch.nn.functional, "linear", narrow)
    assert [measure()[name] for name in factors] == [2, 2, bits, 3]

    def sparse(left: torch.Tensor, right: torch.Tensor, *_: Any) -> torch.Tensor:
        """Leave out the two smallest of each four weights."""
        fours = right.unflatten(-1, (-1, 4))
        return linear(left, (fours * torch.zeros_like(fours).scatter(-1, fours.topk(2).indices, 1.0)).flatten(-2))

    monkeypatch.setattr(torch.nn.functional, "linear", sparse)
    assert "linear weights" not in measure()  # values are lost, and not rounded


@pytest.mark.parametrize(("precision", "bits"), [("fp32", 23), ("bf16", 7)])
def test_each_factor_of_attention_is_measured(precision: Any, bits: int) -> None:
    """Kernels with queries or keys of four bits have a scale for each row, and round outputs as before."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)

    def measured(attention: Any) -> list[int | None]:
        found = measure_attention(attention, torch.device("cpu"), precision)
        return [found.get(name) for name in ("attention", *(f"attention {part}" for part in factors))]

    factors = ("queries", "keys", "scores")
    assert measured(attend) == [bits, bits, bits, min(bits, 10)]
    short = lambda query, key, value, scale: attend(_short(query), _short(key), value, scale)  # noqa: E731
    assert measured(short)[:3] == [bits, 3, 3]
    by_channel = lambda query, key, value, scale: attend(query, _short(key.mT).mT, value, scale)  # noqa: E731
    assert measured(by_channel) == [bits, bits, 2, min(bits, 10)]
    coarse = lambda query, key, value, scale: (  # noqa: E731
        (query @ key.transpose(-1, -2) * scale).to(torch.float8_e4m3fn).to(query.dtype).softmax(-1) @ value
    )
    assert measured(coarse)[3] == 3
    for wrong in (math.inf, math.nan, 0.0):
        broken = lambda *given, wrong=wrong: attend(*given) * wrong  # noqa: E731
        assert measured(broken) == [None] * 4


@pytest.mark.parametrize("kind", ["eager", "sdpa", "formula"])
def test_the_attention_that_a_model_computes_is_the_one_measured(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.matmul if kind != "sdpa" else torch.nn.functional.scaled_dot_product_attention
    spec, device = shipped_spec("sequence-classification"), torch.device("cpu")
    model = build_model(spec, attention="eager" if kind == "eager" else "sdpa", dropout=0.0, device=device)
    if kind == "formula":
        use_plain_attention(model)
    attend = attention_function(model)
    assert attend is not None
    assert measure_attention(attend, device, "fp32")["attention queries"] == 23
    owner = torch if kind != "sdpa" else torch.nn.functional
    narrow = lambda left, *given, **named: plain(left.bfloat16().float(), *given, **named)  # noqa: E731
    monkeypatch.setattr(owner, plain.__name__, narrow)
    assert measure_attention(attend, device, "fp32")["attention queries"] == 7
