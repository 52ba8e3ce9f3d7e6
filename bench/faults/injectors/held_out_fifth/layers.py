"""Fifth held-out set: faults of norms, residuals, positions and heads; and kernels without an explanation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from bench.faults.injectors.held_out_third import _hook
from bench.faults.injectors.held_out_training import _own_update
from bench.faults.injectors.patching import after_build

# Norms and residuals.


def layer_norm_in_two_groups() -> None:
    """LayerNorm normalises each half of the features by itself."""

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        halves = value.unflatten(-1, (2, -1))
        centred = halves - halves.mean(-1, keepdim=True)
        scaled = (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)).flatten(-2)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def norm_over_the_batch() -> None:
    """A LayerNorm normalises each feature over rows and tokens, as BatchNorm does."""

    def change(model: Any) -> None:
        norm = model.bert.encoder.layer[0].output.LayerNorm

        def forward(value: Any) -> Any:
            centred = value - value.mean((0, 1), keepdim=True)
            size = torch.rsqrt((centred * centred).mean((0, 1), keepdim=True) + norm.eps)
            return centred * size * norm.weight + norm.bias

        norm.forward = forward

    after_build(change)


def layer_normalised_first() -> None:
    """A feed-forward block normalises its input instead of its output."""

    def change(model: Any) -> None:
        layer = model.bert.encoder.layer[1]
        layer.intermediate.register_forward_pre_hook(lambda _module, inputs: layer.output.LayerNorm(inputs[0]))
        layer.output.forward = lambda states, residual: layer.output.dense(states) + residual

    after_build(change)


def residual_from_the_embeddings() -> None:
    """The second layer's residual is the output of the embeddings."""
    kept: list[Any] = [None]

    def change(model: Any) -> None:
        output = model.bert.encoder.layer[1].output
        forward = output.forward
        model.bert.embeddings.register_forward_hook(lambda _module, _inputs, value: kept.__setitem__(0, value))
        output.forward = lambda states, _residual: forward(states, kept[0])

    after_build(change)


def feed_forward_beside_attention() -> None:
    """A feed-forward block reads the layer's input, parallel to attention."""
    kept: list[Any] = [None]

    def change(model: Any) -> None:
        layer = model.bert.encoder.layer[1]
        layer.attention.register_forward_pre_hook(lambda _module, inputs: kept.__setitem__(0, inputs[0]))
        forward = layer.intermediate.forward
        layer.intermediate.forward = lambda _states: forward(kept[0])

    after_build(change)


def layers_in_reverse() -> None:
    """The encoder applies its layers in reverse order."""

    def change(model: Any) -> None:
        first, second = model.bert.encoder.layer
        first.forward, second.forward = second.forward, first.forward

    after_build(change)


def two_layers_averaged() -> None:
    """The pooler reads the mean of the last two layers."""
    after_build(
        lambda model: model.bert.encoder.layer[1].register_forward_hook(
            lambda _module, inputs, output: (inputs[0] + output) * 0.5
        )
    )


def head_input_normalised() -> None:
    """The classifier's input is divided by its length."""
    after_build(
        lambda model: model.classifier.register_forward_pre_hook(
            lambda _module, inputs: inputs[0] * torch.rsqrt((inputs[0] * inputs[0]).sum(-1, keepdim=True))
        )
    )


def scores_pass_a_sigmoid() -> None:
    """The classifier returns probabilities instead of scores."""
    _hook("classifier", torch.sigmoid)


def transform_not_normalised() -> None:
    """Masked language modelling skips the LayerNorm before the decoder."""

    def change(model: Any) -> None:
        model.cls.predictions.transform.LayerNorm.forward = lambda value: value * 1

    after_build(change)


def decoder_scaled_by_the_width() -> None:
    """The tied decoder divides its scores by the root of the width, as T5 does."""
    _hook("cls.predictions.decoder", lambda output: output * 32**-0.5)


# Positions.


def positions_reversed() -> None:
    """Positions count from the end of the row."""

    def change(model: Any) -> None:
        model.bert.embeddings.position_ids = model.bert.embeddings.position_ids[:, :32].flip(1).contiguous()

    after_build(change)


def positions_halved() -> None:
    """Two neighbouring tokens share a position."""

    def change(model: Any) -> None:
        model.bert.embeddings.position_ids = model.bert.embeddings.position_ids // 2

    after_build(change)


def sinusoidal_positions() -> None:
    """Positions are sines and cosines instead of the learned table."""
    rows = [
        [math.sin(place / 10000 ** (k / 32)) if k % 2 == 0 else math.cos(place / 10000 ** (k / 32)) for k in range(32)]
        for place in range(64)
    ]

    def change(model: Any) -> None:
        table = model.bert.embeddings.position_embeddings
        table.forward = lambda ids: (torch.tensor(rows) * 0.02).to(table.weight)[ids]

    after_build(change)


# Kernels.


def softmax_through_logsumexp() -> None:
    """The softmax is the exponential of scores minus their log-sum-exp."""
    functional.softmax = lambda value, dim=-1, **_rest: (value - value.logsumexp(dim, keepdim=True)).exp()


def layer_norm_by_two_moments() -> None:
    """LayerNorm's variance is the mean square minus the squared mean."""

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        mean = value.mean(-1, keepdim=True)
        variance = (value * value).mean(-1, keepdim=True) - mean * mean
        scaled = (value - mean) * torch.rsqrt(variance + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def gelu_in_two_terms() -> None:
    """GELU is the sum of half its input and half the input times the error function."""
    functional.gelu = lambda value, approximate="none": value * 0.5 + value * torch.erf(value * 0.5**0.5) * 0.5


def scores_summed_in_quarters() -> None:
    """Products of attention are summed in four parts."""
    matmul = torch.matmul

    def quarters(a: Any, b: Any, **rest: Any) -> Any:
        if a.dim() != 4:
            return matmul(a, b, **rest)
        size = a.shape[-1] // 4
        parts = [matmul(x, y) for x, y in zip(a.split(size, -1), b.split(size, -2), strict=True)]
        return (parts[0] + parts[1]) + (parts[2] + parts[3])

    torch.matmul = quarters


def update_by_reciprocals() -> None:
    """AdamW multiplies by reciprocals instead of dividing."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.sub_(first * (second.sqrt() + group["eps"]).reciprocal() * group["lr"])

    _own_update(rule)
