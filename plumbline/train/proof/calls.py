"""Module calls, repeated in fp64 from their native inputs, exactly or with random rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from plumbline.schema.spec import Precision
from plumbline.train.proof.distance import Lost, distance, unit_of
from plumbline.train.proof.draws import Draw, NativeDraws
from plumbline.train.proof.isolation import NoCollectives, by_owner, generators_of, mapped, undisturbed
from plumbline.train.proof.repeated import Repeated, in_double
from plumbline.train.watch.calls import first_tensor

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
_Change = Callable[[torch.Tensor], torch.Tensor]
Level = Literal["leaf", "block"]
"""Whether a module is one without children, or holds such."""


def matrix_of(module: nn.Module) -> nn.Parameter | None:
    """Return the weight matrix of a linear-like module, else `None`."""
    weight = getattr(module, "weight", None)
    is_matrix = isinstance(weight, nn.Parameter) and weight.dim() == 2
    return weight if is_matrix and not isinstance(module, nn.Embedding) else None


@dataclass(eq=False, slots=True)
class Call:
    """One module call, with its native inputs and dropout masks."""

    name: str
    module: nn.Module
    inputs: tuple[Any, dict[str, Any]]
    buffers: dict[str, torch.Tensor]
    """Those of the call's start."""
    draws: list[Draw]
    formats: set[torch.dtype]
    """Formats of what the module and those inside returned."""
    gradient: torch.Tensor | None = None
    """What the backward pass gave the output."""
    passed: dict[int, torch.Tensor] = field(default_factory=dict)
    """Expected gradients of the inputs of a matrix product, by place."""
    moved: dict[int, dict[torch.Tensor | int, torch.Tensor]] = field(default_factory=dict)
    """By trial, square of the distance by which roundings move each gradient, in roundings, once it is measured."""

    @property
    def level(self) -> Level:
        """Return whether the module has children."""
        return "block" if any(True for _ in self.module.children()) else "leaf"

    @property
    def kind(self) -> str:
        """Return the module's class."""
        return type(self.module).__name__

    def inputs_by(self, change: _Change) -> tuple[Any, dict[str, Any]]:
        """Return the inputs, with `change` applied to each tensor."""
        given, named = mapped(list(self.inputs), change)
        return given, named

    def parameters_by(self, change: _Change) -> dict[str, torch.Tensor]:
        """Return the parameters by name, with `change` applied to each."""
        return by_owner(self.module, "named_parameters", lambda _, value: change(value))

    def output(self, parameters: dict[str, torch.Tensor], inputs: tuple[Any, dict[str, Any]]) -> torch.Tensor | None:
        """Return the module's output by its definition in fp64."""
        # Copies: a module may change its own buffers, such as BatchNorm's statistics and its number of batches.
        tensors = {name: in_double(value).clone() for name, value in self.buffers.items()} | parameters
        # torch restores the weights of a module that stands at two places wrongly, if it ties them itself.
        return first_tensor(functional_call(self.module, tensors, *inputs, tie_weights=False))


class Repetitions:
    """Repetitions of a model's module calls in fp64."""

    def __init__(self, model: nn.Module, device: torch.device, *, is_foreign: bool) -> None:
        self._device, self._is_foreign = device, is_foreign
        self.precision: Precision = "fp32"
        self.draws, self._generators, self.lost = NativeDraws(), generators_of(model, device), Lost()
        self.is_on_cpu = device.type == "cpu"
        """Whether numbers are read without a wait."""
        self.unknown = torch.full((), math.nan, dtype=torch.float64, device=device)

    def _exactly(self, call: Call, repeated: Repeated) -> ExitStack:
        """Return a context for fp64 recomputation with known masks, which no hook takes for the training's."""
        stack = ExitStack()
        stack.enter_context(self.lost.guarded(call.name or "model"))
        if self.precision in SHORT:
            stack.enter_context(torch.autocast(self._device.type, enabled=False))
        if self._is_foreign and dist.is_initialized():
            stack.enter_context(NoCollectives())
        stack.enter_context(repeated)
        stack.enter_context(undisturbed(self._generators, repeated.drew))
        return stack

    def format_in(self, call: Call, dtype: torch.dtype) -> torch.dtype:
        """Return the lowest-precision dtype used within a module."""
        own = SHORT.get(self.precision, dtype) if call.level == "block" else dtype
        return max({own, *call.formats}, key=unit_of)

    def output(self, call: Call, rounded: torch.dtype | None = None, trial: int = 0) -> torch.Tensor | None:
        """Return a module's output by definition, if dropout masks are known."""
        repeated = Repeated(call.draws, rounded, trial)
        parameters, inputs = call.parameters_by(repeated.entered), call.inputs_by(repeated.entered)
        found = None
        with self._exactly(call, repeated), torch.no_grad():
            found = call.output(parameters, inputs)
        if repeated.is_short:
            self.lost.setdefault(call.name or "model", "draws numbers of its own")
        return None if repeated.is_short else found

    def moved_output(self, call: Call, exact: torch.Tensor, dtype: torch.dtype, trial: int) -> torch.Tensor:
        """Return how far random rounding moves an output, in roundings."""
        moved, again = self.output(call, dtype, trial), self.output(call) if self.is_on_cpu and not trial else exact
        if moved is None or again is None or (self.is_on_cpu and not torch.equal(again, exact)):
            return self.unknown  # such as draws of a generator that nothing here sees
        return distance(moved, exact) / unit_of(dtype)

    def moved(
        self, call: Call, trial: int, exact: dict[torch.Tensor | int, torch.Tensor] | None = None
    ) -> dict[torch.Tensor | int, torch.Tensor]:
        """Return how far random rounding moves each gradient of a call, squared."""
        if trial not in call.moved and call.gradient is not None:
            exact = self.gradients(call, call.gradient) if exact is None else exact
            dtype = self.format_in(call, call.gradient.dtype)
            moved = self.gradients(call, call.gradient, dtype, trial)
            call.moved[trial] = {
                key: (distance(moved[key], value) / unit_of(dtype)).square()
                for key, value in exact.items() if key in moved
            }  # fmt: skip
        return call.moved.get(trial, {})

    def gradients(
        self, call: Call, gradient: torch.Tensor, rounded: torch.dtype | None = None, trial: int = 0
    ) -> dict[torch.Tensor | int, torch.Tensor]:
        """Return the expected gradients of parameters and matrix product inputs."""
        repeated, wanted = Repeated(call.draws, rounded, trial), dict[torch.Tensor | int, torch.Tensor]()
        own = {name: value for name, value in call.module.named_parameters() if value.requires_grad}

        def leaf(value: torch.Tensor) -> torch.Tensor:
            exact = repeated.entered(value)
            if exact.is_floating_point():
                wanted[len(wanted)] = exact.requires_grad_()
            return exact

        inputs = call.inputs_by(leaf if matrix_of(call.module) is not None else repeated.entered)
        parameters, passed = call.parameters_by(repeated.entered), repeated.entered(gradient)
        wanted |= {value: parameters[name].requires_grad_() for name, value in own.items()}
        found: tuple[torch.Tensor | None, ...] = ()
        with self._exactly(call, repeated), torch.enable_grad():
            output = call.output(parameters, inputs)
            if output is None or not output.requires_grad or output.shape != gradient.shape:
                return {}
            # A module may compute its own forward pass again in the backward pass.
            found = torch.autograd.grad(output, list(wanted.values()), passed, allow_unused=True)
        known = () if repeated.is_short else found
        return {key: each for key, each in zip(wanted, known, strict=False) if each is not None}
