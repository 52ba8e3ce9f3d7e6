"""Hooks, and changes of tensors, that faults of several files use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import adamw

from bench.faults.injectors.patching import Condition, patch
from plumbline.train import batches, probe
from plumbline.train.checkpoint import Progress
from plumbline.train.context import Context
from plumbline.train.engine import Engine
from plumbline.train.learn import LearnRun
from plumbline.train.portable import probe_windows

Tensor = torch.Tensor
RESTART = 24
"""Step of the only checkpoint of a learning curve."""


def after_build(change: Callable[[Any], Any], *owners: Any) -> None:
    """Change each model of these modules, the probe's by default, once its weights are loaded."""

    @torch.no_grad()
    def loaded(plain: Any, model: Any, weights: Any) -> None:
        plain(model, weights)
        change(model)

    for owner in owners or (probe, probe_windows):
        patch(owner, "load_weights", loaded)


def once_built(change: Callable[[Engine], Any]) -> None:
    """Change each engine once it is built."""

    def built(plain: Any, self: Engine, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        change(self)

    patch(Engine, "__init__", built)


def positions(change: Callable[[list[int]], list[int]]) -> None:
    """Change the positions of rows that training batches read."""
    patch(batches.TrainingRows, "__getitems__", lambda plain, self, places: plain(self, change(list(places))))


def fetched(change: Callable[[Any], Any]) -> None:
    """Change each encoded batch in place."""

    def fetch(plain: Any, self: Any, rows: Any, epochs: Any) -> Any:
        batch = plain(self, rows, epochs)
        change(batch)
        return batch

    patch(batches._Encoded, "_fetch", fetch)


def split(change: Callable[[Any], Any], acts: Condition) -> None:
    """Change global batches before they are split, while `acts()`."""
    patch(Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)), acts)


def accumulated(change: Callable[[list[Any]], Any]) -> None:
    """Change the parameters' accumulated gradients before they are recorded and clipped."""

    def updated(plain: Any, self: Engine) -> None:
        change([value for value in self.bare.parameters() if value.grad is not None])
        plain(self)

    patch(Engine, "_update", updated)


def of_curve(change: Callable[[int, Any], Any]) -> None:
    """Call `change(step, batch)` for the global batches of learning curves."""
    runs: list[Any] = []

    def running(plain: Any, self: LearnRun) -> None:
        runs.append(self)
        try:
            plain(self)
        finally:
            runs.clear()

    def changed(plain: Any, self: Any, *, first: int, count: int, **rest: Any) -> Any:
        found = plain(self, first=first, count=count, **rest)
        return (change(step, batch) for step, batch in enumerate(found, first)) if runs else found

    patch(LearnRun, "run", running)
    patch(Context, "batches", changed)


def interrupt() -> Condition:
    """Interrupt learning curves at their checkpoint and resume them; return whether a curve was resumed.

    An experiment is never interrupted.
    """
    resumed: list[Any] = []

    def twice(plain: Any, self: Any) -> None:
        if type(self) is LearnRun and self.until > RESTART:
            until, self.until = self.until, RESTART
            plain(self)
            self.until, self._progress = until, Progress()
            resumed.append(self)
        plain(self)

    patch(LearnRun, "run", twice)
    return lambda: bool(resumed)


def straight_through(value: Tensor, rounded: Tensor) -> Tensor:
    """Return the rounded value, with the gradient of the value."""
    return value + (rounded.to(value.dtype) - value).detach()


def short_of(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a value rounded to a shorter format, in its own dtype."""
    return straight_through(value, value.detach().to(dtype))


def with_gradient(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a view of a value, whose gradient `change` replaces."""
    if value is None or not value.requires_grad:
        return value
    view = value.view_as(value)
    view.register_hook(change)
    return view


def without_tail(value: Tensor, tail: Tensor | None, size: int) -> Tensor:
    """Return a tensor whose last `size` features are those of `tail`, or zero."""
    end = torch.zeros_like(value[..., -size:]) if tail is None else tail[..., -size:].to(value.dtype)
    return torch.cat((value[..., :-size], end), dim=-1)


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups."""
    return [value for group in optimizer.param_groups for value in group["params"]]


def own_update(rule: Callable[..., Any]) -> None:
    """Replace AdamW's update by `rule(group, value, first, second)`, which gets the corrected moments."""

    @torch.no_grad()
    def step(self: Any, _closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for value in (value for value in group["params"] if value.grad is not None):
                state = self.state[value]
                if not state:
                    zeros = {name: torch.zeros_like(value) for name in ("exp_avg", "exp_avg_sq")}
                    state |= {"step": torch.tensor(0.0), **zeros}
                state["step"] += 1
                count = float(state["step"])
                first = state["exp_avg"].mul_(beta1).add_(value.grad, alpha=1 - beta1)
                second = state["exp_avg_sq"].mul_(beta2).addcmul_(value.grad, value.grad, value=1 - beta2)
                rule(group, value, first / (1 - beta1**count), second / (1 - beta2**count))

    adamw.AdamW.step = step


def with_rates(change: Callable[[Any], float], acts: Condition | None = None) -> None:
    """Let AdamW update by the rate `change(group)`, and restore the rates that the log shows."""

    def stepped(plain: Any, self: Any, *given: Any, **named: Any) -> Any:
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = change(group)
        try:
            return plain(self, *given, **named)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate

    patch(adamw.AdamW, "step", stepped, acts)


def before_update(change: Callable[[Any, int], Any]) -> None:
    """Call `change(optimizer, count)` before each of AdamW's updates, counted from 0 on."""

    def stepped(plain: Any, self: Any, *given: Any, **named: Any) -> Any:
        count = self.__dict__["updates"] = self.__dict__.get("updates", -1) + 1
        change(self, count)
        return plain(self, *given, **named)

    patch(adamw.AdamW, "step", stepped)


def after_update(change: Callable[[Any], Any]) -> None:
    """Call `change(parameter)` for each parameter after each of AdamW's updates."""

    @torch.no_grad()
    def stepped(plain: Any, self: Any, *given: Any, **named: Any) -> Any:
        found = plain(self, *given, **named)
        for value in parameters_of(self):
            change(value)
        return found

    patch(adamw.AdamW, "step", stepped)
