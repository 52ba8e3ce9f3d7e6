"""Patching of the trainer from outside, by replacing members of its modules and classes.

A *change* is called as `change(plain, ...)` instead of a function `plain`. A *hook* applies a change. `by(hook)` makes
the decorated change an injector of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

Change = Callable[..., Any]
Condition = Callable[[], bool]
Injector = Callable[[], None]
SDPA = "scaled_dot_product_attention"
_NOW = SimpleNamespace(part="", step=-1, last=0)
"""Part and number of the step under way, and number of the last step that began; steps of windows count."""

is_compiling: Condition = torch.compiler.is_compiling


def patch(owner: Any, name: str, change: Change, acts: Condition | None = None) -> None:
    """Call `change(plain, ...)` instead of a member of `owner`, while `acts()` where that is given."""
    plain = getattr(owner, name)

    def patched(*given: Any, **named: Any) -> Any:
        return change(plain, *given, **named) if acts is None or acts() else plain(*given, **named)

    setattr(owner, name, patched)


def by(hook: Callable[..., Any], *given: Any) -> Callable[[Change], Injector]:
    """Return a decorator that makes a change an injector, which calls `hook(change, *given)`."""

    def make(change: Change) -> Injector:
        def inject() -> None:
            hook(change, *given)

        # Not by `functools.wraps`: a signature with parameters is that of an injector which alters data.
        inject.__name__, inject.__module__, inject.__doc__ = change.__name__, change.__module__, change.__doc__
        return inject

    return make


def replaces(owner: Any, name: str, acts: Condition | None = None) -> Callable[[Change], Injector]:
    """Return a decorator that makes a change of this member an injector."""
    return by(lambda change: patch(owner, name, change, acts))


def with_keys(**keys: Any) -> Change:
    """Return a change that gives a function other keyword arguments."""
    return lambda plain, *given, **named: plain(*given, **named | keys)


def of_output(change: Callable[[Any], Any]) -> Change:
    """Return a change of what a function returns."""
    return lambda plain, *given, **named: change(plain(*given, **named))


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing instead of a function."""


def follow() -> None:
    """Follow the steps of all engines, for `during` and `last_step`."""

    def step(plain: Any, self: Any, number: int, batch: Any) -> Any:
        before = _NOW.part, _NOW.step
        _NOW.part, _NOW.step, _NOW.last = self.part, number, number
        try:
            return plain(self, number, batch)
        finally:
            _NOW.part, _NOW.step = before

    patch(import_module("plumbline.train.engine").Engine, "step", step)


def during(part: str, first: int = 0, last: float = math.inf) -> Condition:
    """Return a condition: a step of `part` is under way, from step `first` to `last`."""
    return lambda: _NOW.part == part and first <= _NOW.step <= last


def last_step() -> int:
    """Return the number of the last step that began, of any part."""
    return int(_NOW.last)


def is_mixed() -> bool:
    """Return whether autocast is on: a kernel of bf16 or fp16 is chosen."""
    return torch.is_autocast_enabled("cpu")


def is_unstrict() -> bool:
    """Return whether kernels may be chosen that are not deterministic, as in `speed`."""
    return not torch.are_deterministic_algorithms_enabled()
