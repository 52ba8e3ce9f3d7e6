"""The loss by a team's own definition, `loss=FUNCTION` of `capture`: a recorded step beside it, in fp64."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import torch

from plumbline.schema.errors import ConfigurationError
from plumbline.train.capture.loop import Definition, Loop
from plumbline.train.capture.window import made_input
from plumbline.train.portable.fp64 import fp64_arithmetic, hashed
from plumbline.train.proof.distance import Found, error_of, moved_size
from plumbline.train.proof.isolation import mapped, repetition
from plumbline.train.proof.repeated import NUMBER_TRIALS, Repeated, in_double
from plumbline.train.watch.calls import first_tensor
from plumbline.train.watch.summaries import aside

LOSS = "the definition of the loss"


def check_definition(function: Any) -> None:
    """Raise `ConfigurationError` if `loss` takes no outputs and batch."""
    why = "" if function is None or callable(function) else "is no function"
    try:
        if callable(function):
            inspect.signature(function).bind(None, None)
    except TypeError:
        why = "does not take two arguments"
    except ValueError:
        pass  # of a function without a signature nothing is known
    if why:
        hint = "give a function of the model's outputs and the batch, which returns the loss"
        raise ConfigurationError(why, where="capture", key="loss", hint=hint)


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply `change` to each tensor, also of an output with names."""
    if isinstance(value, Mapping) and type(value) is not dict:
        made: Any = copy.copy(value)
        for key, entry in value.items():
            made[key] = _changed(entry, change)
        return made
    return mapped(value, change)


class _Wide(Repeated):
    """Torch mode in which the tensors that a definition holds, such as weights of classes, are read in fp64, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` with wider floats."""

        def wide(value: torch.Tensor) -> torch.Tensor:
            return value.double() if value.is_floating_point() else value

        given, named = mapped([args, kwargs or {}], wide)
        return super().__torch_function__(func, types, given, named)


class DefinedLoss:
    """Loss of one recorded step by its definition, with the gradient with which the backward pass begins."""

    def __init__(self, run: Loop, definition: Definition) -> None:
        self._run, self._definition = run, definition
        self._passes: list[tuple[Any, Any]] = []
        self._gradients: dict[int, torch.Tensor] = {}
        """By pass, the gradient of the logits."""

    def gives(self, output: Any, given: dict[str, Any]) -> None:
        """Keep a pass's outputs and arguments, and wait for its backward pass."""
        place, logits = len(self._passes), first_tensor(output)
        self._passes.append((_changed(output, lambda value: value.detach().clone()), given))
        if logits is not None and logits.requires_grad:
            logits.register_hook(lambda gradient: self._gradients.setdefault(place, gradient.detach().clone()))

    def found(self, batch: Any, loss: Any) -> tuple[list[Found], float | None]:
        """Return the errors of the loss and of its gradient, and the loss of made outputs; synchronises the device.

        `batch` is that of `run.step`; without it, the model's arguments by name. A definition that fails is unknown.
        All processes call this together, as a loop may show the mean loss of all.
        """
        found, defined, portable = list[Found](), None, None
        with self._run.aside(LOSS):
            if len(self._gradients) != 1:
                raise ValueError(f"a step has {len(self._gradients)} passes forward and backward")
            ((place, passed),) = self._gradients.items()
            outputs, given = self._passes[place]
            batch = given if batch is None else batch
            exact, rounded = (self._repeated(outputs, batch, _Wide((), each)) for each in (None, passed.dtype))
            found.append(self._of_logits(passed, exact[1], rounded[1]))
            modes = (_Wide((), passed.dtype, trial) for trial in range(1, NUMBER_TRIALS))
            defined = exact[0], rounded[0], *(self._repeated(outputs, batch, mode)[0] for mode in modes)
        values = self._run.ranks.gather(None if defined is None else float(defined[0]))
        if defined is None:
            return [], None
        with self._run.aside(LOSS):
            if loss is not None:
                means = [float(defined[0]), float(np.mean([each for each in values if each is not None]))]
                found += self._of_value(first_tensor(outputs), loss, defined, means)
        with self._run.aside("the formula of the loss"):
            portable = self._portable(outputs, batch)
        return found, portable

    def _defined(self, outputs: Any, batch: Any, mode: Repeated) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of outputs in fp64, and the gradient of their logits."""
        device, own = self._run.ranks.device, _changed(batch, lambda value: in_double(value).clone())
        with aside(), repetition(self._run.model), torch.autocast(device.type, enabled=False), fp64_arithmetic():
            with mode:
                loss = self._definition(outputs, own)
            logits = first_tensor(outputs)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.isfinite().all() or logits is None:
                raise ValueError("returns no finite number")
            (slope,) = torch.autograd.grad(loss.reshape(()), [logits])
        return loss.detach().reshape(()), slope.detach()

    def _repeated(self, outputs: Any, batch: Any, mode: Repeated) -> tuple[torch.Tensor, torch.Tensor]:
        def entered(value: torch.Tensor) -> torch.Tensor:
            return mode.entered(value).requires_grad_() if value.is_floating_point() else value

        return self._defined(_changed(outputs, entered), batch, mode)

    def _of_value(
        self, logits: torch.Tensor | None, loss: Any, defined: tuple[torch.Tensor, ...], means: list[float]
    ) -> list[Found]:
        """Compare the loss that a loop shows with its own defined one, or with the mean of all processes.

        `defined` has the exact loss, and the loss of each trial of roundings.
        """
        assert logits is not None  # noqa: S101 - a gradient reached it
        is_tensor = isinstance(loss, torch.Tensor) and not logits.is_cuda  # CUDA's autocast rounds as the logits
        dtype = loss.dtype if is_tensor and loss.is_floating_point() else logits.dtype
        if dtype in (torch.bfloat16, torch.float16):  # in which each of its functions rounds
            self._run.unknown.setdefault(f"the loss's number beside its definition: computed in {dtype}")
            return []
        nearest = min(means, key=lambda mean: abs(float(loss) - mean))
        native, exact = defined[0].new_tensor(float(loss)), defined[0].new_tensor(nearest)
        error = error_of(native, exact, moved_size(defined[0], dtype, *defined[1:]), dtype)
        return [Found("loss", "loss", type(self._run.model).__name__, dtype, logits.numel(), error)]

    def _of_logits(self, passed: torch.Tensor, slope: torch.Tensor, moved: torch.Tensor) -> Found:
        """Compare the logits' gradient up to one factor, as a loop may scale its loss."""
        factor = (passed.double() * slope).sum() / slope.square().sum().clamp_min(1e-300)
        size = moved_size(slope, passed.dtype, moved) * factor.abs()
        error = error_of(passed, slope * factor, size, passed.dtype)
        return Found("loss", "logits", type(self._run.model).__name__, passed.dtype, slope.numel(), error)

    def _portable(self, outputs: Any, batch: Any) -> float:
        """Return the loss of outputs in (0, 1) that are made of their places: its formula, equal on every machine."""
        places = count()

        def made(value: torch.Tensor) -> torch.Tensor:
            own = hashed(tuple(value.shape), f"output {next(places)}", value.device).abs()
            return own.requires_grad_() if value.is_floating_point() else value

        given = _changed(batch, lambda value: made_input(value, f"batch {next(places)}"))
        return float(self._defined(_changed(outputs, made), given, _Wide(()))[0])
