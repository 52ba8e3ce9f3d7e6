"""Production choices of a training, each of which can be exchanged: precision, attention, compiler, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from plumbline.schema.errors import ConfigurationError
from plumbline.schema.spec import MANTISSA_BITS, Precision, RunSpec, SpeedSpec
from plumbline.train.compat.transformers import recompute_layers, takes_made_masks
from plumbline.train.context import Context
from plumbline.train.engine import Clock, Engine
from plumbline.train.failure import TrainingFailedError
from plumbline.train.model import build_model, load_weights
from plumbline.train.ranks import Ranks
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
    """Round the values of a model with eager attention to the format of `precision` from now on.

    The rounding shows the error that the format explains, without its kernels. The output of every module and its
    gradient are rounded to the format's mantissa, and so are scores, weights and output of attention, and the
    parameters of linear layers, as autocast does. The range of the format is not limited.
    """
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


@dataclass(frozen=True, slots=True)
class Choices:
    """Everything at production settings that may choose a different kernel."""

    speed: SpeedSpec
    single_tensor: bool = False
    """Whether the optimizer updates one tensor after the other, by torch's plain loop."""
    in_fp32: tuple[str, ...] = ()
    """Classes of modules that compute in fp32, without autocast."""
    rounded: Precision | None = None
    """Format to which each module's output is rounded, whatever the precision."""

    def change(self, **keys: Any) -> Choices:
        """Return the choices with changed keys of `speed`."""
        if keys.get("compile") is False:
            keys["compile_mode"] = "default"
        return replace(self, speed=self.speed.replace(**keys))


def plain_choices(speed: SpeedSpec) -> Choices:
    """Return the choices of the plain model in fp32, with values rounded to the format of `speed`."""
    plain = SpeedSpec(steps=speed.steps, precision="fp32", attention="eager", fused_optimizer=False)
    return Choices(plain, rounded=speed.precision)


def _check_attention(speed: SpeedSpec) -> None:
    from transformers.utils.import_utils import is_flash_attn_2_available

    if speed.attention == "flash_attention_2" and not is_flash_attn_2_available():
        hint = 'install the package flash-attn on a machine with a GPU, or set "sdpa"'
        raise TrainingFailedError(
            "flash_attention_2 is not available", code="setting", part="speed", where="speed", key="attention",
            hint=hint,
        )  # fmt: skip


def _model(context: Context, spec: RunSpec, choices: Choices, dropout: float) -> nn.Module:
    speed, device = choices.speed, context.ranks.device
    _check_attention(speed)
    model = build_model(spec, attention=speed.attention, dropout=dropout, device=device)
    load_weights(model, context.weights)
    model.train()
    if speed.gradient_checkpointing and not recompute_layers(model, draws=dropout > 0):
        where = f"model of the family {spec.model.family!r}"
        raise ConfigurationError("does not support checkpoints", where=where, key="gradient_checkpointing")
    if choices.rounded is not None:
        round_values(model, choices.rounded)
    for module in model.modules():
        if type(module).__name__ in choices.in_fp32:
            _compute_in_fp32(module, device)
    return model


def make_engine(
    context: Context, spec: RunSpec, choices: Choices, *, dropout: float, steps: int, ranks: Ranks,
    clock: Clock | None = None,
) -> Engine:  # fmt: skip
    """Return the engine of a training at these choices, not yet compiled, with the initial weights."""
    speed = choices.speed
    engine = Engine(
        spec, _model(context, spec, choices, dropout), ranks, steps=steps, precision=speed.precision, part="speed",
        fused=speed.fused_optimizer, clock=clock, optimizer=speed.optimizer, is_sharded=speed.distributed == "fsdp",
        distributed={"bucket_cap_mb": speed.ddp_bucket_mb, "static_graph": speed.ddp_static_graph},
    )  # fmt: skip
    # A compiled model does not read the mask: it keeps the one that it always makes.
    engine.makes_masks = not speed.compile and takes_made_masks(engine.bare)
    engine.padding = speed.padding
    if speed.padding == "packed" and not engine.makes_masks:
        hint = 'install transformers 5.0 or newer, or set padding = "longest"'
        raise ConfigurationError("this model accepts no mask of packed rows", where="speed", key="padding", hint=hint)
    for group in engine.optimizer.param_groups:
        if choices.single_tensor:
            group |= {"fused": False, "foreach": False}
        elif speed.foreach_optimizer is not None:
            group["foreach"] = speed.foreach_optimizer
    return engine


def compile_model(engine: Engine, speed: SpeedSpec) -> None:
    """Compile the engine's model if `speed` says so."""
    engine.is_compiled = speed.compile
    if speed.compile:
        engine.keeps_graphs = speed.compile_mode in {"reduce-overhead", "max-autotune"}
        engine.model.compile(mode=speed.compile_mode)


def _compute_in_fp32(module: nn.Module, device: torch.device) -> None:
    """Run a module without autocast, on inputs in fp32."""
    plain: Callable[..., Any] = module.forward

    def forward(*given: Any, **named: Any) -> Any:
        with torch.autocast(device.type, enabled=False):
            return plain(*map(_widened, given), **{name: _widened(value) for name, value in named.items()})

    module.forward = forward


def _widened(value: Any) -> Any:
    is_short = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_short else value
