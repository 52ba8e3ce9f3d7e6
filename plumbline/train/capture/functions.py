"""Torch functions that a model calls in one pass, with their arguments: exact facts, which name what a number shows.

A function mode gives a replaced function private arguments, and calls it twice. So the mode runs in a repetition of the
first call on a few rows, which the training does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from plumbline.schema.captured import MAX_CALLS, FunctionCall, FunctionCalls
from plumbline.train.capture.tensors import named_tensors
from plumbline.train.capture.window import few_rows
from plumbline.train.compat.torch import without_compiler
from plumbline.train.failure import MODULE_ERRORS, described
from plumbline.train.proof.isolation import copied_buffers, is_closed, repetition, replaced_function
from plumbline.train.watch.calls import hookable

_LONGEST, _MOST_VALUES, _MOST_ARGUMENTS = 120, 8, 32
_OF_MACHINE = frozenset({"device", "out"})
"""Arguments that are no part of a formula."""


def _text(value: Any) -> str:
    """Return a plain argument as text. A tensor has its format and shape elsewhere; an object has its class alone."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, slice):
        return ":".join("" if each is None else _text(each) for each in (value.start, value.stop, value.step))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value[:_MOST_VALUES]))}{', …' if len(value) > _MOST_VALUES else ''}]"
    is_plain = isinstance(value, (bool, int, float, str, type(None), type(...), torch.dtype))
    return (repr(value) if is_plain else type(value).__name__)[:_LONGEST]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for _, each in islice(named_tensors(value), _MOST_ARGUMENTS)]


class _Functions(TorchFunctionMode):
    """Torch mode that lists each call which gives a tensor, or writes into one, by the module that makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[FunctionCall] = []
        self._within: list[str] = []

    def hooked(self, model: nn.Module) -> ExitStack:
        """Follow the modules' calls until the returned context exits."""
        hooks = ExitStack()
        for name, module in hookable(model):
            hooks.enter_context(module.register_forward_pre_hook(partial(self._enters, name or "model")))
            hooks.enter_context(module.register_forward_hook(self._leaves, always_call=True))
        return hooks

    def _enters(self, name: str, *_: Any) -> None:
        self._within.append(name)

    def _leaves(self, *_: Any) -> None:
        self._within.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and list it; an attribute such as a shape is no computation."""
        named, name = kwargs or {}, getattr(func, "__name__", type(func).__name__)
        tensors = _tensors([args, named])
        formats, shapes = _formats(tensors), _shapes(tensors)  # before the call, which may change them
        result = func(*args, **named)
        given = _tensors(result)
        if len(self.calls) <= MAX_CALLS and name != "__get__" and (given or name == "__setitem__"):
            arguments = {key: _text(value) for key, value in _arguments(args, named)}
            self.calls.append(
                FunctionCall(
                    module=self._within[-1] if self._within else "model", name=name[:_LONGEST], arguments=arguments,
                    formats=f"{formats} → {_formats(given)}", shapes=f"{shapes} → {_shapes(given)}",
                )
            )  # fmt: skip
        return result


def _arguments(args: Any, named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    each = [*((str(place), value) for place, value in enumerate(args)), *named.items()]
    # Arguments that begin with `_` are torch's own, such as the depth of a warning.
    shown = (
        (key, value) for key, value in each
        if not key.startswith("_") and key not in _OF_MACHINE and not isinstance(value, torch.Tensor)
    )  # fmt: skip
    yield from islice(shown, _MOST_ARGUMENTS)


def _formats(tensors: list[torch.Tensor]) -> str:
    return " ".join(str(value.dtype).removeprefix("torch.") for value in tensors)[:400]


def _shapes(tensors: list[torch.Tensor]) -> str:
    return " ".join("x".join(map(str, value.shape)) or "1" for value in tensors)[:400]


def called_functions(model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> FunctionCalls:
    """Return the calls of a pass over a few rows of one call's arguments, in the training's own format, or why not."""
    seen = _Functions()
    lost = "" if is_closed([given, named]) else "the model is given an object that a call may change"
    if (name := replaced_function()) or lost:
        return FunctionCalls(lost=lost or f"{name} is replaced")
    (few, keywords), buffers = few_rows([list(given), named]), copied_buffers(model)
    device = next(model.parameters()).device
    # Without its cache, which would keep copies of this pass for the training's own.
    as_trained = torch.autocast(
        device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type), cache_enabled=False
    )
    try:
        with repetition(model), seen.hooked(model), as_trained, without_compiler(), seen:
            functional_call(model, buffers, tuple(few), keywords, tie_weights=False)
    except MODULE_ERRORS as error:
        return FunctionCalls(lost=described(error, 300))
    lost = f"the calls behind the first {MAX_CALLS}" if len(seen.calls) > MAX_CALLS else ""
    return FunctionCalls(calls=tuple(seen.calls[:MAX_CALLS]), lost=lost)
