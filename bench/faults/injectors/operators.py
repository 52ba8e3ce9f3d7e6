"""Faults of the probe's operators, of their precision and of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import entropy, own_update
from bench.faults.injectors.patching import after_build, replace_everywhere, step_counter, wrap_method

_LINEAR = functional.linear


@fault("operator")
def tanh_gelu() -> None:
    """GELU by its tanh approximation."""
    wrap_method(functional, "gelu", lambda gelu: lambda value, approximate="none": gelu(value, approximate="tanh"))


@fault("kernel")
def softmax_spelt_out() -> None:
    """The softmax as exponentials and their sum."""

    def spelt_out(value: Any, dim: int | None = None, **_rest: Any) -> Any:
        raised = (value - value.amax(-1, keepdim=True)).exp()
        return raised / raised.sum(-1, keepdim=True)

    functional.softmax = spelt_out


def _hook(path: str, change: Callable[[Any], Any]) -> None:
    def build(model: Any) -> None:
        model.get_submodule(path).register_forward_hook(lambda _m, _i, output: change(output))

    after_build(build)


@fault("operator")
def pooler_without_tanh() -> None:
    """The pooler's tanh is missing."""
    _hook("bert.pooler.dense", lambda output: torch.atanh(output.clamp(-0.999, 0.999)))


def _lowered(function: Any, dtype: torch.dtype) -> Any:
    """A function of tensors computed in `dtype` wherever they are in fp32."""

    def lower(*values: Any, **rest: Any) -> Any:
        if values[0].dtype != torch.float32:
            return function(*values, **rest)
        cast = [one.to(dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in values]
        return function(*cast, **rest).float()

    return lower


@fault("precision")
def gelu_in_bf16() -> None:
    """GELU in bf16."""
    wrap_method(functional, "gelu", lambda gelu: _lowered(gelu, torch.bfloat16))


def _is_single(value: torch.Tensor) -> bool:
    return value.dtype == torch.float32


def _half(value: torch.Tensor) -> torch.Tensor:
    """Round fp32 values to bf16; return the values of other formats."""
    return value.bfloat16().float() if _is_single(value) else value


@fault("precision", "mlm")
def token_scores_in_bf16_for_the_loss() -> None:
    """The loss of masked language modelling reads the scores in bf16."""
    entropy(
        lambda entropy: lambda scores, labels, *args, **rest: entropy(_half(scores), labels, *args, **rest),
    )


@fault("operator", "mlm")
def transform_not_normalised() -> None:
    """Masked language modelling skips the LayerNorm before the decoder."""

    def change(model: Any) -> None:
        model.cls.predictions.transform.LayerNorm.forward = lambda value: value * 1

    after_build(change)


@fault("precision")
def autocast_from_step_six() -> None:
    """From the seventh step on a library leaves autocast on."""
    step = step_counter()
    replace_everywhere(
        "autocast",
        lambda autocast: (
            lambda precision, device: (
                torch.autocast("cpu", dtype=torch.bfloat16) if step() >= 6 else autocast(precision, device)
            )
        ),
        among=("engine",),
    )


def _joined(change: Callable[[Any], Any]) -> None:
    """Change attention's output, with the axes row, token, head and feature."""

    def wrap(forward: Any) -> Any:
        def attend(*args: Any, **rest: Any) -> Any:
            output, weights = forward(*args, **rest)
            return change(output), weights

        return attend

    wrap_method(modeling_bert, "eager_attention_forward", wrap)


@fault("operator")
def a_head_lost_at_step_five() -> None:
    """At the sixth step alone the second head returns zeros."""
    step = step_counter()
    _joined(lambda output: output * torch.tensor([1.0, 0.0]).to(output)[None, None, :, None] if step() == 5 else output)


def _attention(change: Any) -> None:
    """Change the mask that attention gets."""
    wrap_method(
        modeling_bert,
        "eager_attention_forward",
        lambda forward: lambda module, q, k, v, mask, **rest: forward(module, q, k, v, change(mask, q), **rest),
    )


@fault("operator")
def mask_too_weak() -> None:
    """Hidden positions are pushed down by five, not by the smallest number."""
    _attention(lambda mask, q: None if mask is None else mask.clamp(min=-5.0))


@fault("kernel")
def gelu_in_two_terms() -> None:
    """GELU is the sum of half its input and half the input times the error function."""
    functional.gelu = lambda value, approximate="none": value * 0.5 + value * torch.erf(value * 0.5**0.5) * 0.5


def _autocast(dtype: torch.dtype) -> None:
    replace_everywhere(
        "autocast", lambda _: lambda precision, device: torch.autocast("cpu", dtype=dtype), among=("engine",)
    )


@fault("precision")
def bf16_autocast() -> None:
    """Autocast to bf16 left on."""
    _autocast(torch.bfloat16)


@fault("precision")
def fp64_left_on() -> None:
    """The model stays in fp64 after an experiment."""
    after_build(lambda model: model.double())


@fault("operator")
def scaled_as_if_dropped() -> None:
    """Dropout drops nothing, and scales all the same."""
    functional.dropout = lambda value, p=0.5, training=True, inplace=False: value / 0.9 if training else value


class _Linear(torch.autograd.Function):
    """A linear layer whose backward pass sums in fp64."""

    @staticmethod
    def forward(context: Any, x: Any, w: Any, b: Any) -> Any:
        context.save_for_backward(x, w)
        return _LINEAR(x, w, b)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        x, w = context.saved_tensors
        back = gradients[0].double()
        flat = back.reshape(-1, back.shape[-1])
        weight = flat.t() @ x.double().reshape(-1, x.shape[-1])
        return (back @ w.double()).to(x.dtype), weight.to(w.dtype), flat.sum(0).to(w.dtype)


@fault("kernel")
def linear_backward_in_fp64() -> None:
    """The backward pass of linear layers summed in fp64."""
    functional.linear = lambda x, w, b=None: _LINEAR(x, w) if b is None else _Linear.apply(x, w, b)


@fault("kernel")
def update_by_reciprocals() -> None:
    """AdamW multiplies by reciprocals instead of dividing."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.sub_(first * (second.sqrt() + group["eps"]).reciprocal() * group["lr"])

    own_update(rule)


@fault("precision")
def embeddings_added_in_bf16() -> None:
    """The three embeddings are added in bf16, the rest stays in fp32."""

    def change(model: Any) -> None:
        norm = model.bert.embeddings.LayerNorm
        added = _lowered(lambda value: value * 1, torch.bfloat16)
        norm.register_forward_pre_hook(lambda _module, inputs: added(inputs[0]))

    after_build(change)


@fault("kernel")
def entropy_by_its_formula() -> None:
    """Cross entropy as a log-sum-exp less the label's score."""

    def entropy(scores: Any, labels: Any, *_args: Any, **_rest: Any) -> Any:
        return (scores.logsumexp(-1) - scores.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()

    functional.cross_entropy = entropy


@fault("kernel")
def layer_norm_by_two_moments() -> None:
    """LayerNorm's variance is the mean square minus the squared mean."""

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        mean = value.mean(-1, keepdim=True)
        variance = (value * value).mean(-1, keepdim=True) - mean * mean
        scaled = (value - mean) * torch.rsqrt(variance + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm
