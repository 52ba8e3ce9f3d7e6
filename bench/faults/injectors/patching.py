"""Patching of the trainer from outside, by replacing module members."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

TRAINER = (
    "batches", "context", "engine", "evaluation", "experiment", "job", "models.model", "numerics", "optimizers",
    "portable.probe_windows", "probe", "speed", "weights", "machine.mantissa",
)  # fmt: skip


def modules() -> list[Any]:
    """Return the trainer's modules."""
    return [import_module(f"plumbline.train.{name}") for name in TRAINER]


def replace_everywhere(name: str, wrap: Callable[[Any], Any], *, among: tuple[str, ...] = TRAINER) -> None:
    """Wrap a function in every trainer module that imports it."""
    for module in (import_module(f"plumbline.train.{one}") for one in among):
        if hasattr(module, name):
            setattr(module, name, wrap(getattr(module, name)))


def wrap_method(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Wrap a method of a class or a function of a module."""
    setattr(owner, name, wrap(getattr(owner, name)))


def step_counter() -> Callable[[], int]:
    """Return a function that returns the current step of the training."""
    from plumbline.train import engine

    now = [0]

    def wrap(run: Any) -> Any:
        def stepped(self: Any, step: int, batch: Any) -> Any:
            now[0] = step
            return run(self, step, batch)

        return stepped

    wrap_method(engine.Engine, "step", wrap)
    return lambda: now[0]


def after_build(change: Callable[[Any], None]) -> None:
    """Change each model once its weights are loaded."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            change(model)

        return loaded

    replace_everywhere("load_weights", wrap, among=("probe", "portable.probe_windows", "speed"))


def during(part: str, first: int = 0) -> Callable[[], bool]:
    """Return a function that says whether a step of `part` is under way, from step `first` on; its windows count."""
    now: list[Any] = ["", -1]

    def wrap(step: Any) -> Any:
        def stepped(self: Any, place: int, batch: Any) -> Any:
            before, now[:] = list(now), [self.part, place]
            try:
                return step(self, place, batch)
            finally:
                now[:] = before

        return stepped

    wrap_method(import_module("plumbline.train.engine").Engine, "step", wrap)
    return lambda: now[0] == part and now[1] >= first
