"""Sixth held-out set: modules that compute a different formula."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_third import _hook
from bench.faults.injectors.patching import after_build
from bench.faults.world import LENGTH


def scores_scaled_by_the_length() -> None:
    """A configuration for long texts scales attention by the logarithm of the text's length."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any = None, **_rest: Any) -> Any:
        scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        if mask is not None:
            lengths = (mask == 0).to(scores).sum(-1, keepdim=True).clamp(min=2)
            scores = scores * (lengths.log() / math.log(LENGTH)) + mask
        weights = functional.softmax(scores, dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights

    modeling_bert.eager_attention_forward = attend


def residuals_scaled_up() -> None:
    """A port of DeepNet multiplies the residuals by 1.2 before each LayerNorm."""

    def forward(self: Any, states: Any, residual: Any) -> Any:
        return self.LayerNorm(self.dropout(self.dense(states)) + residual * 1.2)

    modeling_bert.BertSelfOutput.forward = modeling_bert.BertOutput.forward = forward


def norm_scale_plus_one() -> None:
    """A fused kernel made for Gemma adds 1 to the scale of LayerNorm."""
    norm = functional.layer_norm

    def scaled(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        return norm(value, shape, None if weight is None else weight + 1, bias, eps)

    functional.layer_norm = scaled


def pooler_reads_the_last_token() -> None:
    """A release pools the last token of the sequence, as for generative models."""

    def change(model: Any) -> None:
        model.bert.pooler.register_forward_pre_hook(lambda _module, inputs: (inputs[0].flip(1), *inputs[1:]))

    after_build(change)


def head_scores_capped() -> None:
    """A release caps the classifier's scores by a tanh, as Gemma 2 does."""
    _hook("classifier", lambda scores: torch.tanh(scores * 4) * 0.25)


def hard_swish_for_gelu() -> None:
    """An export for mobile devices replaces GELU by hard swish."""
    functional.gelu = lambda value, approximate="none": value * (value + 3).clamp(min=0, max=6) * (1 / 6)


def tanh_by_a_fraction() -> None:
    """A math library computes tanh by a fraction of small degree."""

    def fraction(value: Any) -> Any:
        bounded = value.clamp(min=-3, max=3)
        square = bounded * bounded
        return bounded * (square + 27) / (square * 9 + 27)

    def change(model: Any) -> None:
        model.bert.pooler.activation.forward = fraction

    after_build(change)


def transform_by_relu() -> None:
    """A port takes ReLU for the activation before the decoder."""

    def change(model: Any) -> None:
        model.cls.predictions.transform.transform_act_fn.forward = lambda value: value.clamp(min=0)

    after_build(change)
