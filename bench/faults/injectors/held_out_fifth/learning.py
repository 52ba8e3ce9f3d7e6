"""Fifth held-out set: faults of the learning curve alone; the probe is not touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from bench.faults.injectors.patching import replace_everywhere, wrap_method
from bench.faults.injectors.training import _entropy
from plumbline.staging import order
from plumbline.train import dropout, engine, learn
from plumbline.train.dropout import PortableDropout
from plumbline.train.optimizers import make_schedule

_LEARN = ("learn",)


def _engine(name: str, change: Callable[[Any], Any]) -> None:
    """Replace a method of the learning curve's engine; the probe keeps its own."""

    def wrap(method: Any) -> Any:
        changed = change(method)
        return lambda self, *args, **rest: (changed if self.part == "learn" else method)(self, *args, **rest)

    wrap_method(engine.Engine, name, wrap)


def learn_schedule_ends_at_half() -> None:
    """The learning curve's schedule reaches zero after half of the steps."""

    def wrap(init: Any) -> Any:
        def made(self: Any, spec: Any, *args: Any, steps: int, part: str, **rest: Any) -> None:
            init(self, spec, *args, steps=steps, part=part, **rest)
            if part == "learn":
                self.schedule = make_schedule(self.optimizer, spec, steps // 2)

        return made

    wrap_method(engine.Engine, "__init__", wrap)


def learn_epochs_repeat_the_first() -> None:
    """Each epoch repeats the first one's order (accelerate without `set_epoch`)."""
    wrap_method(order.Order, "_epoch", lambda epoch: lambda self, _number: epoch(self, 0))


def learn_dropout_doubled() -> None:
    """The learning curve drops a fifth instead of a tenth."""

    def wrap(use: Any) -> Any:
        def used(model: Any, clock: Any) -> None:
            use(model, clock)
            for module in model.modules():
                if isinstance(module, PortableDropout):
                    module.p = 0.2

        return used

    replace_everywhere("use_portable_dropout", wrap, among=_LEARN)


def learn_dropout_lost_after_an_evaluation() -> None:
    """The model stays in evaluation mode after the first evaluation."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, *args: Any, **rest: Any) -> Any:
            result = evaluate(model, *args, **rest)
            model.eval()
            return result

        return evaluated

    replace_everywhere("evaluate", wrap, among=_LEARN)


def learn_masks_repeat() -> None:
    """Every step of the learning curve uses the first step's dropout masks."""
    wrap_method(learn._DropoutSetter, "starts", lambda starts: lambda self, _step: starts(self, 0))


def learn_micro_batches_share_masks() -> None:
    """All micro-batches use the dropout masks of the first."""
    wrap_method(learn._DropoutSetter, "feeds", lambda feeds: lambda self, local, _micro: feeds(self, local, 0))


def learn_evaluated_with_dropout() -> None:
    """The learning curve's evaluations do not switch dropout off."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, *args: Any, **rest: Any) -> Any:
            switch, model.eval = model.eval, lambda: model
            try:
                return evaluate(model, *args, **rest)
            finally:
                model.eval = switch

        return evaluated

    replace_everywhere("evaluate", wrap, among=_LEARN)


def learn_starts_from_a_bf16_checkpoint() -> None:
    """The learning curve starts from weights in bf16."""

    def wrap(load: Any) -> Any:
        return lambda model, weights: load(model, {name: w.bfloat16().float() for name, w in weights.items()})

    replace_everywhere("load_weights", wrap, among=_LEARN)


def learn_labels_flipped() -> None:
    """In the learning curve every ninth row has the wrong label."""

    def change(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            wrong = batch["row_ids"] % 9 == 0
            labels = torch.where(wrong, 1 - batch["labels"], batch["labels"])
            return step(self, number, {**batch, "labels": labels})

        return stepped

    _engine("step", change)


def learn_moments_lost_at_the_checkpoint() -> None:
    """Saving a checkpoint clears the optimizer's state."""

    def wrap(save: Any) -> Any:
        def saved(folder: Any, run: Any, *rest: Any) -> None:
            save(folder, run, *rest)
            run.optimizer.state.clear()

        return saved

    replace_everywhere("save_checkpoint", wrap, among=_LEARN)


def learn_micro_batches_summed() -> None:
    """The learning curve adds up the gradients of micro-batches instead of averaging them."""
    _engine("_backward", lambda back: lambda self, loss, share: back(self, loss, 1.0))


def learn_in_bf16() -> None:
    """The learning curve runs under autocast to bf16."""

    def change(forward: Any) -> Any:
        def lowered(self: Any, piece: Any, share: float) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return forward(self, piece, share)

        return lowered

    _engine("_forward", change)


def learn_attention_not_scaled() -> None:
    """The attention of the learning curve does not scale its scores."""
    wrap_method(
        dropout,
        "_attention",
        lambda attention: lambda *args, scaling=None, **rest: attention(*args, scaling=1.0, **rest),
    )


def learn_labels_smoothed() -> None:
    """The learning curve smooths its labels."""
    learning = [False]

    def change(forward: Any) -> Any:
        def smoothed(self: Any, piece: Any, share: float) -> Any:
            learning[0] = True
            try:
                return forward(self, piece, share)
            finally:
                learning[0] = False

        return smoothed

    _engine("_forward", change)
    _entropy(
        lambda entropy: (
            lambda scores, labels, *args, **rest: (
                entropy(scores, labels, label_smoothing=0.1) if learning[0] else entropy(scores, labels, *args, **rest)
            )
        )
    )


def learn_masks_unseeded() -> None:
    """Each run draws dropout masks with a different seed."""
    replace_everywhere(
        "DropoutClock",
        lambda clock: lambda _seed: clock(int.from_bytes(os.urandom(4), "little")),
        among=_LEARN,
    )
