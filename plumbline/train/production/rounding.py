"""Rounding of a model in fp32 to a shorter format: the error that the format explains, without its kernels.

The output of every module and its gradient are rounded to the format's mantissa, and so are scores, weights and output
of attention, and the parameters of linear layers, as autocast does. The range of the format is not limited.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plumbline.judge.limits import MANTISSA_BITS
from plumbline.schema.spec import Precision
from plumbline.train.compat.transformers import replace_attention
from plumbline.train.taps import first_tensor, with_first_tensor

_FP32_BITS = 23
_ATTENTION = "plumbline-rounded-{bits}"


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Return fp32 values rounded to `bits` of mantissa, to nearest, ties away from zero."""
    if bits >= _FP32_BITS or values.dtype != torch.float32:
        return values
    dropped = _FP32_BITS - bits
    words = values.contiguous().view(torch.int32)
    return ((words + (1 << (dropped - 1))) & -(1 << dropped)).view(torch.float32)


class _Rounded(torch.autograd.Function):
    """Autograd function: round the values, and in the backward pass the gradient."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, bits: int) -> torch.Tensor:
        context.bits = bits
        return rounded(values, bits)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return rounded(gradients[0], context.bits), None


def _round(values: torch.Tensor, bits: int) -> torch.Tensor:
    result: torch.Tensor = _Rounded.apply(values, bits)  # type: ignore[no-untyped-call]
    return result


def _attention(bits: int) -> Any:
    def attend(  # noqa: PLR0917 - transformers calls it so
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0, **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        del module, dropout
        scores = torch.matmul(query, key.transpose(2, 3)) * (query.size(-1) ** -0.5 if scaling is None else scaling)
        scores = _round(scores, bits)
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = _round(nn.functional.softmax(scores, dim=-1), bits)
        return _round(torch.matmul(weights, value), bits).transpose(1, 2).contiguous(), weights

    return attend


def round_values(model: nn.Module, precision: Precision) -> None:
    """Round the model's values to the format of `precision` from now on."""
    bits = MANTISSA_BITS[precision]
    if bits >= _FP32_BITS:
        return
    name = _ATTENTION.format(bits=bits)
    replace_attention(model, name, _attention(bits))

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        value = first_tensor(output)
        return output if value is None else with_first_tensor(output, _round(value, bits))

    for module in model.modules():
        module.register_forward_hook(hook)
        if isinstance(module, nn.Linear):
            for parameter in module.parameters(recurse=False):
                parameter.data = rounded(parameter.data, bits)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda own: _round_gradient(own, bits))


def _round_gradient(parameter: torch.Tensor, bits: int) -> None:
    if parameter.grad is not None:
        parameter.grad = rounded(parameter.grad, bits)
