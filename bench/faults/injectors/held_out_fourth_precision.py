"""Fourth held-out set: faults of number formats, for fp32 alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bench.faults.injectors.held_out_model import _lowered
from bench.faults.injectors.model import _bits
from bench.faults.injectors.patching import after_build


def _through(value: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return rounded values with the gradient of the unrounded ones."""
    return value + (rounded.to(value) - value).detach()


def feed_forward_in_fp8() -> None:
    """Feed-forward products take their operands in FP8."""
    linear = functional.linear

    def eighth(value: torch.Tensor) -> torch.Tensor:
        scale = value.detach().abs().amax() / 448
        return _through(value, (value.detach() / scale).to(torch.float8_e4m3fn).float() * scale)

    def lowered(x: Any, w: Any, b: Any = None) -> Any:
        wide = x.dtype == torch.float32 and 64 in w.shape
        return linear(eighth(x), eighth(w), b) if wide else linear(x, w, b)

    functional.linear = lowered


class _Tf32Backward(torch.autograd.Function):
    """Linear layer whose backward products round their operands to ten bits."""

    @staticmethod
    def forward(context: Any, x: Any, w: Any, b: Any) -> Any:
        """Return the product in full precision."""
        context.save_for_backward(x, w)
        return _LINEAR(x, w, b)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return the gradients of products with rounded operands."""
        x, w = (_bits(value, 10) for value in context.saved_tensors)
        back = _bits(gradients[0], 10)
        flat = back.reshape(-1, back.shape[-1])
        return back @ w, flat.t() @ x.reshape(-1, x.shape[-1]), gradients[0].reshape(flat.shape).sum(0)


_LINEAR = functional.linear


def tf32_in_the_backward_pass() -> None:
    """Only the backward products of linear layers use TF32."""

    def lowered(x: Any, w: Any, b: Any = None) -> Any:
        return _LINEAR(x, w, b) if b is None or x.dtype != torch.float32 else _Tf32Backward.apply(x, w, b)

    functional.linear = lowered


def partial_sums_in_bf16() -> None:
    """Products add partial sums in bf16 (torch's reduced-precision reduction)."""
    linear = functional.linear

    def lowered(x: Any, w: Any, b: Any = None) -> Any:
        if x.dtype != torch.float32:
            return linear(x, w, b)
        half = x.shape[-1] // 2
        sums = linear(x[..., :half], w[:, :half]).bfloat16() + linear(x[..., half:], w[:, half:]).bfloat16()
        return sums.float() if b is None else sums.float() + b

    functional.linear = lowered


def parameters_in_bf16_for_the_forward_pass() -> None:
    """The forward pass reads its weight matrices in bf16, as FSDP's mixed precision does."""
    linear, embedding = functional.linear, functional.embedding

    def half(w: torch.Tensor) -> torch.Tensor:
        return _through(w, w.detach().bfloat16()) if w.dtype == torch.float32 else w

    functional.linear = lambda x, w, b=None: linear(x, half(w), b)
    functional.embedding = lambda ids, w, *rest, **named: embedding(ids, half(w), *rest, **named)


def attention_weights_in_fp16() -> None:
    """Attention stores its weights in fp16 after an fp32 softmax."""
    softmax = functional.softmax

    def stored(value: Any, dim: int | None = None, **rest: Any) -> Any:
        weights = softmax(value, dim=dim, **rest)
        return weights.half().float() if value.dim() == 4 and value.dtype == torch.float32 else weights

    functional.softmax = stored


def embeddings_added_in_bf16() -> None:
    """The three embeddings are added in bf16, the rest stays in fp32."""

    def change(model: Any) -> None:
        norm = model.bert.embeddings.LayerNorm
        added = _lowered(lambda value: value * 1, torch.bfloat16)
        norm.register_forward_pre_hook(lambda _module, inputs: added(inputs[0]))

    after_build(change)
