"""Repeat a module's call so that neither the training nor the repetition sees the other.

A module may draw numbers, change its buffers or inputs, keep values in attributes, or fill a cache that it is given.
What it changes is copied before its call, put back behind a repetition, or the module is left out, with the reason.
"""

from __future__ import annotations

import contextlib
import enum
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import isfunction
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.train.watch.summaries import is_summarizing

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum, type)


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Apply `change` to each tensor in a nested structure."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(mapped(entry, change) for entry in value)
    return {key: mapped(entry, change) for key, entry in value.items()} if type(value) is dict else value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors of a nested structure."""
    found: list[torch.Tensor] = []
    mapped(value, found.append)
    return found


def by_owner(
    module: nn.Module,
    kind: Literal["named_parameters", "named_buffers"],
    change: Callable[[str, torch.Tensor], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return a module's tensors by each owner's name, each changed once."""
    changed: dict[torch.Tensor, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for path, owner in module.named_modules():
        for own, value in getattr(owner, kind)(recurse=False):
            name = f"{path}.{own}" if path else own
            if value not in changed:
                changed[value] = change(name, value)
            found[name] = changed[value]
    return found


def copied_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a module's buffers."""
    return by_owner(module, "named_buffers", lambda _, value: value.detach().clone())


def is_closed(value: Any) -> bool:
    """Return whether a value contains nothing but tensors and plain values, which no call can change unseen."""
    if isinstance(value, dict):
        return all(map(is_closed, value.values()))
    if isinstance(value, (tuple, list)):
        return all(map(is_closed, value))
    return isinstance(value, (torch.Tensor, *_PLAIN)) or callable(value)


_HELD = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of each module that are torch's own: its parameters, buffers, children and hooks."""


def _attributes(module: nn.Module) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each module's path, all its attributes, and its code's own."""
    for path, each in module.named_modules():
        yield path, vars(each), {name: value for name, value in vars(each).items() if name not in _HELD}


def _marks(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Return plain values and sizes of containers that modules keep."""

    def mark(value: Any) -> Any:
        is_container = isinstance(value, (list, dict, set))
        return value if isinstance(value, _PLAIN) else len(value) if is_container else id(value)

    return {(path, name): mark(value) for path, _, own in _attributes(module) for name, value in own.items()}


class CallState:
    """State before a module's call, as far as the call may change it."""

    def __init__(self, module: nn.Module, given: Any, named: Any) -> None:
        self.buffers = copied_buffers(module)
        self._marks = _marks(module)
        self._is_closed = is_closed(given) and is_closed(named)
        in_place = any(getattr(each, "inplace", False) for each in module.modules())
        self.inputs = mapped((given, named), lambda value: value.detach().clone()) if in_place else None
        """Copies of the inputs, if the module may write over them."""

    def why_not(self, module: nn.Module, output: Any) -> str:
        """Return why the call cannot be repeated, or ""."""
        if not self._is_closed:
            return "is given an object that it may change"
        if self._marks != _marks(module):
            return "keeps values of its forward pass"
        return "" if is_closed(output) or hasattr(output, "logits") else "returns an object"


class OutsideUses(TorchFunctionMode):
    """Torch mode that collects the parameters which a function outside of their own modules reads."""

    def __init__(self, is_inside: Callable[[nn.Parameter], bool]) -> None:
        super().__init__()
        self._is_inside, self.found = is_inside, set[torch.Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and note its parameters; an attribute such as a shape is no use."""
        if getattr(func, "__name__", "") != "__get__" and not is_summarizing():
            mapped([args, kwargs], self._see)
        return func(*args, **kwargs or {})

    def _see(self, value: torch.Tensor) -> None:
        if isinstance(value, nn.Parameter) and value.requires_grad and not self._is_inside(value):
            self.found.add(value)


class NoCollectives(TorchDispatchMode):
    """Torch mode that refuses to call other processes, which repeat nothing at this moment."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, or raise `RuntimeError` for a collective."""
        if "c10d" in func.namespace:
            raise RuntimeError("calls other processes in its forward pass")
        return func(*args, **kwargs or {})


def several(output: Any) -> bool:
    """Return whether gradients reach a module by more than one of its outputs."""
    return sum(value.requires_grad for value in tensors_in(dict(output) if isinstance(output, dict) else output)) > 1


def generators_of(model: nn.Module, device: torch.device) -> list[Any]:
    """Return the generators of all libraries, and those that modules, or the files of their classes, keep."""
    sources = [random, np.random, torch.default_generator]
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        sources.append(torch.cuda.default_generators[place])
    files = {type(module).__module__ for module in model.modules()}
    kept = [*map(vars, model.modules()), *(vars(sys.modules[name]) for name in files if name in sys.modules)]
    return sources + [each for values in kept for each in values.values() if isinstance(each, _GENERATORS)]


_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def _state_of(source: Any) -> Any:
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    if hasattr(source, "getstate"):
        return source.getstate()
    return source.get_state() if isinstance(source, torch.Generator) else source.get_state(legacy=False)


def _set_state(source: Any, state: Any) -> None:
    if isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    else:
        (source.setstate if hasattr(source, "setstate") else source.set_state)(state)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_is_equal(value, other[key]) for key, value in one.items())
    equal = one == other
    return bool(equal.all() if hasattr(equal, "all") else equal)


@contextlib.contextmanager
def undisturbed(generators: Sequence[Any], drew: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Put all generators back behind the context, and call `drew` if one moved."""
    before = [_state_of(source) for source in generators]
    try:
        yield
    finally:
        pairs = zip(generators, before, strict=True)
        moved = [(source, state) for source, state in pairs if not _is_equal(state, _state_of(source))]
        for source, state in moved:
            _set_state(source, state)
        if moved:
            drew()


@contextlib.contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Put what a module and its children keep back behind the context: attributes, and the contents of containers."""
    kept = [(held, own, {name: _content(value) for name, value in own.items()}) for _, held, own in _attributes(module)]
    try:
        yield
    finally:
        for held, own, contents in kept:
            for name in held.keys() - own.keys() - _HELD:
                del held[name]
            held.update(own)
            for name, content in contents.items():
                if isinstance(content, list):
                    own[name][:] = content
                elif content is not None:
                    own[name].clear()
                    own[name].update(content)


def _content(value: Any) -> Any:
    """Return a copy of a plain container; `None` for other values."""
    return value.copy() if type(value) in (list, dict, set) else None


@contextlib.contextmanager
def repetition(model: nn.Module) -> Iterator[None]:
    """Repeat a model's calls, unseen by training and other processes."""
    generators = generators_of(model, next(model.parameters()).device)
    with undisturbed(generators), restored(model), torch.enable_grad(), NoCollectives():
        yield


def replaced_function() -> str:
    """Return the name of a torch function that a program has replaced, or "".

    Only a replacement that may call torch's own function counts. In a function mode torch calls it twice, and gives
    it private arguments.
    """
    for owner in (torch.nn.functional, torch.Tensor):
        for name, value in vars(owner).items():
            own = getattr(value, "__globals__", None)
            if isfunction(value) and not str((own or {}).get("__name__")).startswith("torch") and _uses_names(value):
                return f"{owner.__name__}.{name}"
    return ""


def _uses_names(function: FunctionType) -> bool:
    """Return whether a function may call another one: `Tensor.cuda = lambda self: self` calls none."""
    return bool(function.__code__.co_names or function.__code__.co_freevars)
