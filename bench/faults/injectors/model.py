"""Faults of initial weights, architecture, operators and precision."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from plumbline.train import engine, probe


def reseeded_weights() -> None:
    """Weights drawn anew in place of the shipped ones."""

    def change(model: Any) -> None:
        torch.manual_seed(123)
        with torch.no_grad():
            for value in model.parameters():
                if value.dim() > 1:
                    value.normal_(0, 0.02)

    after_build(change)


def other_isa_weights() -> None:
    """Four of ten values off by at most 2e-6, as from another instruction set."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for value in model.parameters():
                noise = (torch.rand(value.shape, generator=generator) - 0.5) * 4e-6
                value.add_(noise * (torch.rand(value.shape, generator=generator) < 0.39))

    after_build(change)


def padding_row_drawn() -> None:
    """The padding's embedding is not zero."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.bert.embeddings.word_embeddings.weight[0].fill_(0.01)

    after_build(change)


def biases_kept_from_before() -> None:
    """One bias keeps a value that it had before the weights were loaded."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.bert.encoder.layer[1].output.dense.bias.fill_(1e-3)

    after_build(change)


def tied_layers() -> None:
    """Two layers share a weight."""

    def change(model: Any) -> None:
        layers = model.bert.encoder.layer
        layers[1].attention.self.query.weight = layers[0].attention.self.query.weight

    after_build(change)


def untied_decoder() -> None:
    """The decoder of masked language modelling gets a weight of its own."""

    def change(model: Any) -> None:
        decoder = model.cls.predictions.decoder
        decoder.weight = nn.Parameter(decoder.weight.detach().clone())

    after_build(change)


def missing_layer() -> None:
    """The encoder lost its last layer."""

    def change(model: Any) -> None:
        model.bert.encoder.layer = model.bert.encoder.layer[:-1]

    after_build(change)


def tanh_gelu() -> None:
    """GELU by its tanh approximation."""
    wrap_method(functional, "gelu", lambda gelu: lambda value, approximate="none": gelu(value, approximate="tanh"))


def relu_for_gelu() -> None:
    """ReLU where GELU stands."""
    functional.gelu = lambda value, approximate="none": functional.relu(value)


def layer_norm_eps() -> None:
    """LayerNorm's eps as another library has it."""

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-5

    after_build(change)


def layer_norm_unbiased() -> None:
    """LayerNorm with the unbiased variance."""

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        centred = value - value.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt(value.var(-1, keepdim=True, unbiased=True) + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def mask_ignored() -> None:
    """Attention looks at padding as well."""
    wrap_method(
        modeling_bert,
        "eager_attention_forward",
        lambda forward: lambda module, q, k, v, mask, *args, **kwargs: forward(module, q, k, v, None, *args, **kwargs),
    )


def attention_scale() -> None:
    """Scores divided by the head's size, not by its root."""
    wrap_method(
        modeling_bert,
        "eager_attention_forward",
        lambda forward: (
            lambda module, q, k, v, mask, scaling=None, **kwargs: forward(
                module, q, k, v, mask, scaling=scaling**2, **kwargs
            )
        ),
    )


def position_offset() -> None:
    """Positions count from one."""

    def change(model: Any) -> None:
        model.bert.embeddings.position_ids += 1

    after_build(change)


def positions_ignored() -> None:
    """The position's embedding is not added."""

    def change(model: Any) -> None:
        model.bert.embeddings.position_embeddings.forward = lambda ids: torch.zeros(*ids.shape, 32)

    after_build(change)


def pooler_activation() -> None:
    """The pooler's tanh is gone."""

    def change(model: Any) -> None:
        model.bert.pooler.activation = nn.Identity()

    after_build(change)


def pooler_token() -> None:
    """The pooler takes the second token."""
    wrap_method(
        modeling_bert.BertPooler, "forward", lambda forward: lambda self, states: forward(self, states.roll(-1, 1))
    )


def residual_missing() -> None:
    """One layer's residual connection is gone."""

    def change(model: Any) -> None:
        output = model.bert.encoder.layer[1].output
        forward = output.forward
        output.forward = lambda states, residual: forward(states, residual * 0)

    after_build(change)


def _bits(value: torch.Tensor, bits: int) -> torch.Tensor:
    """An fp32 tensor rounded to so many bits of mantissa, as a tensor core rounds its operands."""
    if value.dtype != torch.float32:
        return value
    drop = 23 - bits
    integers = value.detach().contiguous().view(torch.int32)
    rounded = ((integers + (1 << (drop - 1))) >> drop) << drop
    return value + (rounded.view(torch.float32) - value).detach()


def tf32() -> None:
    """Products of matrices with operands rounded to ten bits, in fp32 alone, as TF32 does it."""
    linear, matmul = functional.linear, torch.matmul
    functional.linear = lambda x, w, b=None: linear(_bits(x, 10), _bits(w, 10), b)
    torch.matmul = lambda a, b, **kwargs: matmul(_bits(a, 10), _bits(b, 10), **kwargs)


def tf32_switched_on() -> None:
    """A library switches TF32 on for products of matrices on the GPU, after every setting was read back."""

    def wrap(apply: Any) -> Any:
        def applied(*args: Any, **rest: Any) -> Any:
            found = apply(*args, **rest)
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            return found

        return applied

    replace_everywhere("apply_settings", wrap)


def bf16_products() -> None:
    """Products of matrices with operands rounded to seven bits, in fp32 alone."""
    linear, matmul = functional.linear, torch.matmul
    functional.linear = lambda x, w, b=None: linear(_bits(x, 7), _bits(w, 7), b)
    torch.matmul = lambda a, b, **kwargs: matmul(_bits(a, 7), _bits(b, 7), **kwargs)


def _autocast(dtype: torch.dtype) -> None:
    replace_everywhere(
        "autocast", lambda _: lambda precision, device: torch.autocast("cpu", dtype=dtype), among=("engine",)
    )


def bf16_autocast() -> None:
    """Autocast to bf16 left on."""
    _autocast(torch.bfloat16)


def fp16_autocast() -> None:
    """Autocast to fp16 left on."""
    _autocast(torch.float16)


def fp64_left_on() -> None:
    """The model stays in fp64 after an experiment."""
    after_build(lambda model: model.double())


def fp16_loss() -> None:
    """The loss is computed in fp16."""
    wrap_method(
        functional,
        "cross_entropy",
        lambda entropy: lambda scores, labels, *args, **kwargs: entropy(scores.half(), labels, *args, **kwargs),
    )


def softmax_autocast() -> None:
    """Autocast that reaches the softmax: in half precision for fp32, as it is for fp64."""
    softmax = functional.softmax

    def lower(value: Any, dim: int | None = None, **kwargs: Any) -> Any:
        if value.dtype != torch.float32:
            return softmax(value, dim=dim, **kwargs)
        return softmax(value.bfloat16(), dim=dim, **kwargs).float()

    functional.softmax = lower


def layer_norm_bf16() -> None:
    """LayerNorm in bf16 where its input is fp32."""
    norm = functional.layer_norm

    def lower(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if value.dtype != torch.float32 or weight is None:
            return norm(value, shape, weight, bias, eps)
        return norm(value.bfloat16(), shape, weight.bfloat16(), bias.bfloat16(), eps).float()

    functional.layer_norm = lower


def fp16_gradients() -> None:
    """Gradients pass through fp16 on their way."""
    wrap_method(probe.ProbeObserver, "backward_done", _through_half)


def _through_half(done: Any) -> Any:
    def observed(self: Any) -> None:
        for value in self.engine.bare.parameters():
            if value.grad is not None and value.grad.dtype == torch.float32:
                value.grad.copy_(value.grad.half().float())
        done(self)

    return observed


def wrong_head_split() -> None:
    """Heads are split along the wrong axis."""

    def change(model: Any) -> None:
        attention = model.bert.encoder.layer[0].attention.self
        value = attention.value.forward
        attention.value.forward = lambda states: value(states).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)

    after_build(change)


def embedding_scaled() -> None:
    """Word embeddings multiplied by the root of the width, as another family of models does it."""

    def change(model: Any) -> None:
        model.bert.embeddings.word_embeddings.register_forward_hook(lambda _m, _i, output: output * math.sqrt(32))

    after_build(change)


def operator_from_step_four() -> None:
    """A kernel is chosen anew after four steps, and computes GELU by tanh."""
    gelu, passed = functional.gelu, [0]

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            passed[0] = number
            return step(self, number, batch)

        return stepped

    wrap_method(engine.Engine, "step", wrap)
    functional.gelu = lambda value, approximate="none": gelu(value, approximate="tanh" if passed[0] >= 4 else "none")
