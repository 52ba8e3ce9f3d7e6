"""Ninth held-out set: faults of the second of two processes; a single process has none."""

from __future__ import annotations

import os
from typing import Any

import torch

from bench.faults.injectors.held_out_ninth.updates import _schedule_of_speed, warm_up_of_samples
from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train.engine import Engine

_SHORT = 12


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


def _once_built(change: Any) -> None:
    """Call `change(engine)` for each engine of several processes, once it is built."""

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any, **named: Any) -> None:
            build(self, *given, **named)
            if self.ranks.world > 1:
                change(self)

        return built

    wrap_method(Engine, "__init__", wrap)


def second_process_keeps_its_own_gradients() -> None:
    """The second process of `speed` updates with its own gradients from the second step on."""
    if not _is_second():
        return
    own: dict[Any, Any] = {}

    def watch(engine: Engine) -> None:
        for value in engine._trainable:
            value.register_hook(
                lambda gradient, value=value: own.update({value: own.get(value, 0) + gradient.detach()}) or None
            )

    _once_built(watch)

    def cleared(plain: Any, self: Engine, batch: Any) -> Any:
        own.clear()
        return plain(self, batch)

    def kept(plain: Any, self: Engine) -> None:
        for value in self._trainable:
            if value.grad is not None and value in own:
                value.grad.copy_(own[value])
        plain(self)

    wrap_while(during("speed"), Engine, "_micro_batches", cleared)
    wrap_while(during("speed", 1), Engine, "_update", kept)


def second_process_warms_up_by_rows() -> None:
    """The second process of `speed` counts its warm-up in rows where the task counts steps."""
    if _is_second():
        _schedule_of_speed(warm_up_of_samples)


def second_process_reads_shorter_rows() -> None:
    """The second process of `speed` cuts its rows at twelve tokens."""

    def cut(plain: Any, self: Engine, batch: Any) -> Any:
        late = torch.arange(batch["attention_mask"].shape[1]) >= _SHORT
        return plain(
            self, {name: values.masked_fill(late, 0) if values.dim() > 1 else values for name, values in batch.items()}
        )

    if _is_second():
        wrap_while(during("speed"), Engine, "_micro_batches", cut)


def second_process_starts_from_its_own_head() -> None:
    """The second process of the curve starts with a head of one and a half times the size."""

    def larger(engine: Engine) -> None:
        if engine.part == "learn":
            with torch.no_grad():
                engine.bare.get_parameter("classifier.weight").mul_(1.5)

    if _is_second():
        _once_built(larger)
