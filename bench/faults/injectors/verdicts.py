"""Faults that once got the wrong name, one for each rule of the judge that was changed for them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.optim import adamw

from bench.faults.injectors.patching import replace_everywhere, step_counter, wrap_method
from plumbline.train import evaluation, rows


def rate_inside_the_step() -> None:
    """The optimizer multiplies its learning rate by 1.1 inside its step; the log shows the schedule's."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            rates = [group["lr"] for group in self.param_groups]
            for group in self.param_groups:
                group["lr"] *= 1.1
            try:
                return step(self, *args, **kwargs)
            finally:
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def dropout_in_evaluation() -> None:
    """The evaluation applies dropout of 0.1 to what enters the classifier."""
    busy = [False]

    def during(evaluate: Any) -> Any:
        def evaluated(*args: Any, **kwargs: Any) -> Any:
            busy[0] = True
            try:
                return evaluate(*args, **kwargs)
            finally:
                busy[0] = False

        return evaluated

    def drop(linear: Any) -> Any:
        def dropped(x: Any, w: Any, b: Any = None) -> Any:
            if busy[0] and w.shape[0] == 2:
                kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) >= 0.1
                x = x * kept / 0.9
            return linear(x, w, b)

        return dropped

    evaluation.evaluate_by_definition = during(evaluation.evaluate_by_definition)
    replace_everywhere("evaluate", during, among=("probe", "evaluation", "experiment"))
    functional.linear = drop(functional.linear)


def gradients_lost_after_step_two() -> None:
    """From the fourth step on, the gradient of one matrix is half of itself."""
    step = step_counter()

    def wrap(clip: Any) -> Any:
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            found = list(parameters)
            if step() > 2:
                found[4].grad.mul_(0.5)
            return clip(found, *args, **kwargs)

        return clipped

    wrap_method(torch.nn.utils, "clip_grad_norm_", wrap)


def texts_edited_when_read() -> None:
    """Every third text loses its first word as it is read; the files and their list stay as they are."""

    def wrap(read: Any) -> Any:
        def edited(path: Any, shard: Any, columns: Any, wanted: Any) -> Any:
            found = read(path, shard, columns, wanted)
            place = columns.index("text")
            texts = found[place]
            found[place] = [" ".join(t.split(" ")[1:]) if n % 3 == 0 else t for n, t in enumerate(texts)]
            return found

        return edited

    wrap_method(rows, "_read_columns", wrap)
