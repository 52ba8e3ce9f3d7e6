"""Hooks that faults of several files use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import adamw

from bench.faults.injectors.patching import replace_everywhere, wrap_method
from plumbline.train import batches, context, engine, optimizers
from plumbline.train.checkpoint import Progress
from plumbline.train.learn import LearnRun

Tensor = torch.Tensor
LEARN = ("learn",)
RESTART = 24
"""Step of the only checkpoint of a learning curve."""


def positions(change: Any) -> None:
    """Change the positions of rows that training batches read."""
    wrap_method(
        batches.TrainingRows,
        "__getitems__",
        lambda get: lambda self, positions: get(self, change(list(positions))),
    )


def fetched(change: Any) -> None:
    """Change each encoded batch in place."""

    def wrap(fetch: Any) -> Any:
        def fetched(self: Any, rows: Any, epochs: Any) -> Any:
            batch = fetch(self, rows, epochs)
            change(batch)
            return batch

        return fetched

    wrap_method(batches._Encoded, "_fetch", wrap)


def wrap_while(acts: Callable[[], bool], owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Call `change(plain, ...)` instead of a function while `acts()`."""
    wrap_method(
        owner, name,
        lambda plain: lambda *given, **named: change(plain, *given, **named) if acts() else plain(*given, **named),
    )  # fmt: skip


def compiled(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function in compiled code."""
    wrap_while(torch.compiler.is_compiling, nn.functional, name, change)


def accumulated(change: Callable[[Any, list[Any]], None]) -> None:
    """Change the accumulated gradients before they are recorded and clipped."""

    def wrap(update: Any) -> Any:
        def updated(self: Any) -> None:
            change(self, [value for value in self.bare.parameters() if value.grad is not None])
            update(self)

        return updated

    wrap_method(engine.Engine, "_update", wrap)


def in_curve() -> Callable[[], bool]:
    """Return a function that says whether a learning curve is under way, its evaluations included."""
    now = [False]

    def wrap(run: Any) -> Any:
        def running(self: Any) -> None:
            now[0] = True
            try:
                run(self)
            finally:
                now[0] = False

        return running

    wrap_method(LearnRun, "run", wrap)
    return lambda: now[0]


def of_curve(change: Callable[[int, Any], Any]) -> None:
    """Call `change(step, batch)` for the global batches of learning curves."""
    acts = in_curve()

    def wrap(batches: Any) -> Any:
        def changed(self: Any, *, first: int, count: int, **rest: Any) -> Any:
            found = batches(self, first=first, count=count, **rest)
            return (change(step, batch) for step, batch in enumerate(found, first)) if acts() else found

        return changed

    wrap_method(context.Context, "batches", wrap)


def interrupt() -> Callable[[], bool]:
    """Interrupt learning curves at their checkpoint and resume them; return whether a curve was resumed.

    An experiment is never interrupted.
    """
    is_resumed = [False]

    def wrap(run: Any) -> Any:
        def twice(self: Any) -> None:
            if type(self) is LearnRun and self.until > RESTART:
                until, self.until = self.until, RESTART
                run(self)
                self.until, self._progress = until, Progress()
                is_resumed[0] = True
            run(self)

        return twice

    wrap_method(LearnRun, "run", wrap)
    return lambda: is_resumed[0]


def is_mixed() -> bool:
    """Return whether autocast is on: a kernel of bf16 or fp16 is chosen."""
    return torch.is_autocast_enabled("cpu")


def is_unstrict() -> bool:
    """Return whether kernels may be chosen that are not deterministic, as in `speed`."""
    return not torch.are_deterministic_algorithms_enabled()


def straight_through(value: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return the rounded value, with the gradient of the value."""
    return value + (rounded.to(value.dtype) - value).detach()


def short_of(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a value rounded to a shorter format, in its own dtype."""
    return straight_through(value, value.detach().to(dtype))


def with_gradient(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a view of a value, whose gradient `change` replaces."""
    if value is None or not value.requires_grad:
        return value
    view = value.view_as(value)
    view.register_hook(change)
    return view


def own_update(rule: Any) -> None:
    """AdamW with an update of one's own; `rule` gets the corrected moments."""

    @torch.no_grad()
    def step(self: Any, _closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state |= {
                        "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(value),
                        "exp_avg_sq": torch.zeros_like(value),
                    }  # fmt: skip
                state["step"] += 1
                count = float(state["step"])
                first = state["exp_avg"].mul_(beta1).add_(value.grad, alpha=1 - beta1)
                second = state["exp_avg_sq"].mul_(beta2).addcmul_(value.grad, value.grad, value=1 - beta2)
                rule(group, value, first / (1 - beta1**count), second / (1 - beta2**count))

    adamw.AdamW.step = step


def before_update(change: Any) -> None:
    """Change the optimizer's state before the update whose number is given, from 0 on."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **rest: Any) -> Any:
            count = self.__dict__["updates"] = self.__dict__.get("updates", -1) + 1
            change(self, count)
            return step(self, *args, **rest)

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def entropy(change: Any) -> None:
    """Replace `cross_entropy` by `change(plain)`."""
    wrap_method(functional, "cross_entropy", lambda entropy: change(entropy))


def clip(change: Any) -> None:
    """Replace `clip_grad_norm_` by `change(plain)`."""
    wrap_method(torch.nn.utils, "clip_grad_norm_", lambda clip: change(clip))


def factor(change: Any) -> None:
    """Replace the schedule's factor by `change(plain)`."""
    wrap_method(optimizers, "schedule_factor", lambda factor: change(factor))


def loaded(change: Any) -> None:
    """Change what the evaluation's loader gives."""
    replace_everywhere(
        "make_loader",
        lambda make: lambda rows, size, device: change(make, rows, size, device),
        among=("evaluation",),
    )
