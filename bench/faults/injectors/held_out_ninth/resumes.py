"""Ninth held-out set: faults of a learning curve that is interrupted at its checkpoint and resumed."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from bench.faults.injectors.held_out_ninth.curve import RESTART, interrupt, weights_of_the_start
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import checkpoint, context, learn
from plumbline.train.engine import Engine

_EPOCH = TRAIN_ROWS // BATCH


def _after_filling(change: Any) -> None:
    """Interrupt the curve, and call `change(engine)` once its checkpoint is restored."""
    interrupt()

    def wrap(fill: Any) -> Any:
        def filled(engine: Engine, *given: Any) -> None:
            fill(engine, *given)
            with torch.no_grad():
                change(engine)

        return filled

    wrap_method(checkpoint, "_fill", wrap)


def _named(engine: Engine) -> dict[str, Any]:
    return dict(engine.bare.named_parameters())


def resume_exchanges_moments() -> None:
    """A resume reads moments by place: a tensor gets those of the next one of its shape."""

    def exchange(engine: Engine) -> None:
        by_shape: dict[Any, list[Any]] = {}
        for value in _named(engine).values():
            by_shape.setdefault(tuple(value.shape), []).append(value)
        state = engine.optimizer.state
        for values in by_shape.values():
            kept = [state[value] for value in values]
            for value, other in zip(values, [*kept[1:], kept[0]], strict=True):
                state[value] = other

    _after_filling(exchange)


def resume_takes_the_last_rate_for_the_peak() -> None:
    """A resume takes the decayed learning rate of the checkpoint for the highest."""

    def decayed(engine: Engine) -> None:
        engine.schedule.base_lrs = [group["lr"] for group in engine.optimizer.param_groups]
        for group, factor in zip(engine.optimizer.param_groups, engine.schedule.lr_lambdas, strict=True):
            group["lr"] *= factor(engine.schedule.last_epoch)

    _after_filling(decayed)


def resume_leaves_the_pooler_at_its_start() -> None:
    """A resume does not restore the pooler, which starts from the shipped weights again."""
    first = weights_of_the_start()

    def forget(engine: Engine) -> None:
        for name, value in _named(engine).items():
            if ".pooler." in name:
                value.copy_(first[name])

    _after_filling(forget)


def resume_starts_its_masks_again() -> None:
    """A resumed curve drops the elements of its first steps again."""
    is_resumed = interrupt()

    def wrap(starts: Any) -> Any:
        def restarted(self: Any, step: int) -> None:
            starts(self, step - RESTART if is_resumed() and step >= RESTART else step)

        return restarted

    wrap_method(learn._DropoutSetter, "starts", wrap)


def resume_skips_batches_of_the_next_epoch() -> None:
    """A resume leaves out the batches that it has read in the next epoch, too."""
    is_resumed = interrupt()

    def wrap(batches: Any) -> Any:
        def skipped(self: Any, *, first: int, count: int, **rest: Any) -> Any:
            if not is_resumed() or first != RESTART or first + count <= _EPOCH:
                return batches(self, first=first, count=count, **rest)
            late = first + count - _EPOCH
            return chain(
                batches(self, first=first, count=_EPOCH - first, **rest),
                batches(self, first=_EPOCH + RESTART, count=late, **rest),
            )

        return skipped

    wrap_method(context.Context, "batches", wrap)
