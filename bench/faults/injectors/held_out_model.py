"""Held out: faults of initial weights, architecture, number formats and operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.injectors.patching import after_build, wrap_method
from plumbline.train import fingerprint, probe


def head_drawn_anew() -> None:
    """The classifier was not in the checkpoint, and is drawn."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.classifier.weight.normal_(0, 0.02, generator=torch.Generator().manual_seed(1))

    after_build(change)


def layer_from_another_file() -> None:
    """One layer comes from another checkpoint."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for value in model.bert.encoder.layer[1].attention.parameters():
                if value.dim() > 1:
                    value.normal_(0, 0.02, generator=generator)

    after_build(change)


def weight_transposed() -> None:
    """A conversion forgot to transpose one square matrix."""

    def change(model: Any) -> None:
        with torch.no_grad():
            weight = model.bert.encoder.layer[0].attention.self.query.weight
            weight.copy_(weight.t().clone())

    after_build(change)


def checkpoint_in_half() -> None:
    """The checkpoint was saved in fp16."""

    def change(model: Any) -> None:
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(value.half().to(value))

    after_build(change)


def vocabulary_padded() -> None:
    """The table of tokens was made longer, to a rounder size."""

    def change(model: Any) -> None:
        table = model.bert.embeddings.word_embeddings
        table.weight = nn.Parameter(torch.cat([table.weight.detach(), torch.zeros(40, table.weight.shape[1])]))
        table.num_embeddings += 40

    after_build(change)


def bias_missing() -> None:
    """The keys have no bias."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.attention.self.key.bias = None

    after_build(change)


# Number formats: of fp32 alone, as autocast does it.


def _lowered(function: Any, dtype: torch.dtype) -> Any:
    """A function of tensors computed in `dtype` wherever they are in fp32."""

    def lower(*values: Any, **rest: Any) -> Any:
        if values[0].dtype != torch.float32:
            return function(*values, **rest)
        cast = [one.to(dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in values]
        return function(*cast, **rest).float()

    return lower


def gelu_in_bf16() -> None:
    """GELU in bf16."""
    wrap_method(functional, "gelu", lambda gelu: _lowered(gelu, torch.bfloat16))


def one_layer_norm_in_bf16() -> None:
    """One LayerNorm in bf16."""

    def change(model: Any) -> None:
        norm = model.bert.encoder.layer[1].output.LayerNorm
        lower = _lowered(functional.layer_norm, torch.bfloat16)
        norm.forward = lambda value: lower(value, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    after_build(change)


def scores_in_bf16() -> None:
    """Attention's scores in bf16, the rest in fp32."""
    matmul = torch.matmul
    lower = _lowered(matmul, torch.bfloat16)
    torch.matmul = lambda a, b, **rest: lower(a, b) if b.dim() == 4 and b.shape[-1] > b.shape[-2] else matmul(a, b)


def pooler_in_bf16() -> None:
    """One product of matrices, the pooler's, in bf16."""

    def change(model: Any) -> None:
        dense = model.bert.pooler.dense
        lower = _lowered(functional.linear, torch.bfloat16)
        dense.forward = lambda value: lower(value, dense.weight, dense.bias)

    after_build(change)


def decoder_in_fp16() -> None:
    """The product with the table of tokens in fp16."""

    def change(model: Any) -> None:
        decoder = model.cls.predictions.decoder
        lower = _lowered(functional.linear, torch.float16)
        decoder.forward = lambda value: lower(value, decoder.weight, decoder.bias)

    after_build(change)


def gradients_sent_in_bf16() -> None:
    """Gradients are exchanged in bf16."""

    def wrap(done: Any) -> Any:
        def observed(self: Any) -> None:
            for value in self.engine.bare.parameters():
                if value.grad is not None and value.grad.dtype == torch.float32:
                    value.grad.copy_(value.grad.bfloat16().float())
            done(self)

        return observed

    wrap_method(probe.ProbeObserver, "backward_done", wrap)


# Operators.


def one_tanh_gelu() -> None:
    """GELU by its tanh approximation in one layer."""

    def change(model: Any) -> None:
        activation = model.bert.encoder.layer[1].intermediate.intermediate_act_fn
        activation.forward = lambda value: functional.gelu(value, approximate="tanh")

    after_build(change)


def quick_gelu() -> None:
    """GELU by a sigmoid, as another family of models has it."""
    functional.gelu = lambda value, approximate="none": value * torch.sigmoid(1.702 * value)


def _attention(change: Any) -> None:
    """Change the mask that attention gets."""
    wrap_method(
        modeling_bert,
        "eager_attention_forward",
        lambda forward: lambda module, q, k, v, mask, **rest: forward(module, q, k, v, change(mask, q), **rest),
    )


def mask_added_as_one() -> None:
    """A mask of ones and zeros is added to the scores as it is."""
    _attention(lambda mask, q: None if mask is None else (mask == 0).to(q))


def mask_too_weak() -> None:
    """Hidden positions are pushed down by five, not by the smallest number."""
    _attention(lambda mask, q: None if mask is None else mask.clamp(min=-5.0))


def causal_mask() -> None:
    """Attention looks at what stands before alone."""

    def change(mask: Any, q: Any) -> Any:
        later = torch.full((q.shape[2], q.shape[2]), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
        return later if mask is None else torch.minimum(mask, later)

    _attention(change)


def softmax_plus_one() -> None:
    """Attention's softmax has one more in its denominator."""
    softmax = functional.softmax

    def quiet(value: Any, dim: int | None = None, **rest: Any) -> Any:
        if value.dim() != 4:
            return softmax(value, dim=dim, **rest)
        highest = value.amax(-1, keepdim=True)
        raised = (value - highest).exp()
        return raised / (raised.sum(-1, keepdim=True) + (-highest).exp())

    functional.softmax = quiet


def mean_pooling() -> None:
    """The pooler takes the mean of all tokens."""
    wrap_method(
        modeling_bert.BertPooler,
        "forward",
        lambda forward: lambda self, states: forward(self, states.mean(1, keepdim=True)),
    )


def segments_ignored() -> None:
    """The segment's embedding is not added."""

    def change(model: Any) -> None:
        table = model.bert.embeddings.token_type_embeddings
        table.forward = lambda ids: torch.zeros(*ids.shape, table.weight.shape[1], dtype=table.weight.dtype)

    after_build(change)


def bias_twice() -> None:
    """A fused layer adds its bias twice."""

    def change(model: Any) -> None:
        dense = model.bert.encoder.layer[0].attention.output.dense
        with torch.no_grad():
            dense.register_forward_hook(lambda module, _i, output: output + module.bias)

    after_build(change)


# Controls: a new release computes the same in another order.


def _new_release() -> None:
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"torch": "2.13.1"})


def layer_norm_in_parts() -> None:
    """A release of torch with another kernel for LayerNorm."""
    _new_release()

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        centred = value - value.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def softmax_in_parts() -> None:
    """A release of torch with another kernel for the softmax."""
    _new_release()

    def parts(value: Any, dim: int | None = None, **_rest: Any) -> Any:
        raised = (value - value.amax(-1, keepdim=True)).exp()
        return raised / raised.sum(-1, keepdim=True)

    functional.softmax = parts


def products_in_halves() -> None:
    """A release of torch that sums products of matrices in two halves."""
    _new_release()

    def halves(x: Any, w: Any, b: Any = None) -> Any:
        half = x.shape[-1] // 2
        product = x[..., :half] @ w[:, :half].t() + x[..., half:] @ w[:, half:].t()
        return product if b is None else product + b

    functional.linear = halves


def scaled_first() -> None:
    """A release of transformers that scales queries, not scores."""
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"transformers": "5.23.1"})
    wrap_method(
        modeling_bert,
        "eager_attention_forward",
        lambda forward: (
            lambda module, q, k, v, mask, scaling=None, **rest: forward(
                module, q * (scaling or 1 / math.sqrt(q.shape[-1])), k, v, mask, scaling=1.0, **rest
            )
        ),
    )


def entropy_in_parts() -> None:
    """A release of torch with another kernel for the loss."""
    _new_release()

    def entropy(scores: Any, labels: Any, *_args: Any, **_rest: Any) -> Any:
        return (scores.logsumexp(-1) - scores.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()

    functional.cross_entropy = entropy


def segments_left_out() -> None:
    """The model is called without segments, which are all zero."""
    wrap_method(
        modeling_bert.BertEmbeddings,
        "forward",
        lambda forward: lambda self, *args, token_type_ids=None, **rest: forward(self, *args, **rest),
    )


def other_transformers() -> None:
    """Another release of transformers that computes the same."""
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"transformers": "5.22.0"})
