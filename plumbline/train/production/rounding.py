"""Rounding of a model in fp32 to a shorter format: the error that the format explains, without its kernels.

The output of every module and its gradient are rounded to the format's mantissa, and so are scores, weights and output
of attention, and the parameters of linear layers, as autocast does. The range of the format is not limited.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from plumbline.judge.limits import MANTISSA_BITS
from plumbline.schema.spec import Precision
from plumbline.train.taps import first_tensor, with_first_tensor

_FP32_BITS = 23
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum", "softmax"})
"""Functions of attention's formula in any version of a model's code; a linear layer is a module."""


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


class _RoundedProducts(TorchFunctionMode):
    """Mode that rounds scores, weights and output of attention, which are no outputs of modules."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        is_product = getattr(func, "__name__", "") in _PRODUCTS and isinstance(output, torch.Tensor)
        return _round(output, self._bits) if is_product else output


def round_values(model: nn.Module, precision: Precision) -> None:
    """Round the values of a model with eager attention to the format of `precision` from now on."""
    bits = MANTISSA_BITS[precision]
    if bits >= _FP32_BITS:
        return
    _round_products(model, bits)

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


def _round_products(model: nn.Module, bits: int) -> None:
    """Round the products of each forward pass, by hooks that hold no reference to the model."""
    passes = ExitStack()

    def begin(*_: Any) -> None:
        passes.enter_context(_RoundedProducts(bits))

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(lambda *_: passes.close(), always_call=True)


def _round_gradient(parameter: torch.Tensor, bits: int) -> None:
    if parameter.grad is not None:
        parameter.grad = rounded(parameter.grad, bits)
