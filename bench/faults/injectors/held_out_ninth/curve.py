"""Ninth held-out set: places of the learning curve, its batches and a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.faults.injectors.patching import wrap_method
from plumbline.train import context, learn
from plumbline.train.checkpoint import Progress
from plumbline.train.learn import LearnRun

__all__ = ["RESTART", "in_curve", "interrupt", "of_curve", "weights_of_the_start"]

RESTART = 24
"""Step of the only checkpoint of a learning curve."""


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
                self.until, self._progress = until, Progress(0, [], [], [])
                is_resumed[0] = True
            run(self)

        return twice

    wrap_method(LearnRun, "run", wrap)
    return lambda: is_resumed[0]


def weights_of_the_start() -> dict[str, Any]:
    """Return a mapping that is filled with a curve's weights once they are loaded."""
    first: dict[str, Any] = {}

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            first.update({name: value.detach().clone() for name, value in model.named_parameters()})

        return loaded

    wrap_method(learn, "load_weights", wrap)
    return first
