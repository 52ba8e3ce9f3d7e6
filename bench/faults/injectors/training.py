"""Faults of loss, gradients, optimizer, schedule and evaluation; and what does not agree with itself."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch.nn import functional
from torch.optim import adamw

from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from plumbline.train import engine, optimizers, probe

# Loss.


def _entropy(change: Any) -> None:
    wrap_method(functional, "cross_entropy", lambda entropy: change(entropy))


def loss_sum() -> None:
    """The loss is a sum, not a mean."""
    _entropy(lambda entropy: lambda scores, labels, *args, **kwargs: entropy(scores, labels, reduction="sum"))


def label_smoothing() -> None:
    """Labels are smoothed."""
    _entropy(lambda entropy: lambda scores, labels, *args, **kwargs: entropy(scores, labels, label_smoothing=0.1))


def ignore_index_lost() -> None:
    """Positions that do not count, count."""
    _entropy(lambda entropy: lambda scores, labels, *args, **kwargs: entropy(scores, labels.clamp(min=0)))


def loss_over_all_positions() -> None:
    """The loss is divided by all positions, not by those that count."""
    _entropy(
        lambda entropy: (
            lambda scores, labels, *args, **kwargs: entropy(scores, labels, reduction="sum") / labels.numel()
        )
    )


def class_weights() -> None:
    """One class counts more."""
    _entropy(
        lambda entropy: (
            lambda scores, labels, *args, **kwargs: entropy(
                scores, labels, weight=torch.linspace(1.0, 1.2, scores.shape[-1], dtype=scores.dtype)
            )
        )
    )


# Gradients.


def _backward(change: Any) -> None:
    wrap_method(
        engine.Engine,
        "_backward",
        lambda back: lambda self, loss, share: back(self, loss, change(share)),
    )


def accumulation_sum() -> None:
    """Micro-batches are summed up, not averaged."""
    _backward(lambda share: 1.0)


def mean_of_means() -> None:
    """Uneven micro-batches weigh the same."""
    _backward(lambda share: 0.5)


def gradient_halved() -> None:
    """Gradients are divided once too often."""
    _backward(lambda share: share / 2)


def _clip(change: Any) -> None:
    wrap_method(torch.nn.utils, "clip_grad_norm_", lambda clip: change(clip))


def clipping_off() -> None:
    """Gradients are not clipped."""
    _clip(lambda clip: lambda parameters, most, *args, **kwargs: clip(parameters, 1e9))


def clipping_other_norm() -> None:
    """Gradients are clipped by their largest entry."""
    _clip(lambda clip: lambda parameters, most, *args, **kwargs: clip(parameters, most, norm_type=float("inf")))


def clipping_by_value() -> None:
    """Gradients are clipped entry by entry."""
    torch.nn.utils.clip_grad_norm_ = lambda parameters, most: torch.nn.utils.clip_grad_value_(parameters, 0.01)


def frozen_layer() -> None:
    """A layer is frozen."""

    def change(model: Any) -> None:
        for value in model.bert.encoder.layer[0].attention.parameters():
            value.requires_grad_(False)

    after_build(change)


def detached_embeddings() -> None:
    """The embeddings' gradient is cut off."""

    def change(model: Any) -> None:
        model.bert.embeddings.register_forward_hook(lambda _m, _i, output: output.detach())

    after_build(change)


def stale_gradients() -> None:
    """Every third step forgets to clear the gradients of the one before."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            if number % 3 != 2:
                return step(self, number, batch)
            clear, self.optimizer.zero_grad = self.optimizer.zero_grad, lambda **_: None
            try:
                return step(self, number, batch)
            finally:
                self.optimizer.zero_grad = clear

        return stepped

    wrap_method(engine.Engine, "step", wrap)


def one_gradient_doubled() -> None:
    """A hook is registered twice and doubles one gradient."""

    def change(model: Any) -> None:
        model.bert.encoder.layer[1].output.dense.weight.register_hook(lambda gradient: gradient * 2)

    after_build(change)


# Optimizer.


def _made(change: Any) -> None:
    replace_everywhere("make_optimizer", lambda make: change(make), among=("engine",))


def _with_spec(**changes: Any) -> None:
    _made(lambda make: lambda model, spec, **rest: make(model, spec.replace(**changes), **rest))


def betas() -> None:
    """Betas as another recipe has them."""
    _with_spec(betas=(0.9, 0.98))


def epsilon() -> None:
    """Eps as another recipe has it."""
    _with_spec(eps=1e-6)


def weight_decay_everywhere() -> None:
    """Biases and LayerNorms decay as well."""

    def change(make: Any) -> Any:
        def made(model: Any, spec: Any, **rest: Any) -> Any:
            optimizer = make(model, spec, **rest)
            for group in optimizer.param_groups:
                group["weight_decay"] = spec.weight_decay
            return optimizer

        return made

    _made(change)


def l2_in_place_of_decay() -> None:
    """Adam with L2 in place of AdamW."""
    torch.optim.AdamW = torch.optim.Adam


def amsgrad() -> None:
    """The AMSGrad variant."""
    wrap_method(torch.optim, "AdamW", lambda adam: lambda *args, **kwargs: adam(*args, amsgrad=True, **kwargs))


def _after_update(change: Any) -> None:
    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(self, *args, **kwargs)
            change(self)
            return result

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def no_bias_correction() -> None:
    """The first steps are not corrected for their bias."""

    def change(optimizer: Any) -> None:
        for state in optimizer.state.values():
            state["step"].fill_(10_000)

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            for group in self.param_groups:
                for value in group["params"]:
                    if value.grad is not None and not self.state[value]:
                        self.state[value] = {
                            "step": torch.tensor(10_000.0), "exp_avg": torch.zeros_like(value),
                            "exp_avg_sq": torch.zeros_like(value),
                        }  # fmt: skip
            return step(self, *args, **kwargs)

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)
    _ = change


def stale_momentum() -> None:
    """The first moment is forgotten after every step."""
    _after_update(lambda optimizer: [state["exp_avg"].zero_() for state in optimizer.state.values()])


def skipped_update() -> None:
    """The fourth update does not happen."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            count = self.__dict__["updates"] = self.__dict__.get("updates", 0) + 1
            return None if count == 4 else step(self, *args, **kwargs)

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


# Schedule.


def _factor(change: Any) -> None:
    wrap_method(optimizers, "schedule_factor", lambda factor: change(factor))


def warmup_off_by_one() -> None:
    """The warm-up is a step shorter."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule.replace(warmup_steps=1), step, steps))


def schedule_before_optimizer() -> None:
    """The schedule steps before the optimizer."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, step + 1, steps))


def decay_end() -> None:
    """The decay ends later."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, step, steps + 10))


def constant_rate() -> None:
    """There is no decay."""
    _factor(lambda factor: lambda schedule, step, steps: min(1.0, factor(schedule, min(step, 2), steps)))


def rate_dropped_late() -> None:
    """The rate is halved from the eighth step on."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, step, steps) * (0.5 if step >= 8 else 1))


# Evaluation.


def evaluated_in_training_mode() -> None:
    """The model is not switched to evaluation."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, *args: Any, **kwargs: Any) -> Any:
            switch, model.eval = model.eval, lambda: model
            try:
                return evaluate(model, *args, **kwargs)
            finally:
                model.eval = switch

        return evaluated

    replace_everywhere("evaluate", wrap, among=("probe", "experiment"))


def _loaded(change: Any) -> None:
    """Change what the evaluation's loader gives."""
    replace_everywhere(
        "make_loader",
        lambda make: lambda rows, size, device: change(make, rows, size, device),
        among=("evaluation",),
    )


def wrong_split() -> None:
    """The loader gives rows of the training split."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        start, rows._start = rows._start, int(rows._rows.ids[0])
        first = next(make(rows, size, device))
        rows._start = start
        return iter([{name: value[:1] for name, value in first.items()}])

    _loaded(change)


def shifted_split() -> None:
    """The loader starts a row late and gives one row fewer."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            kept = batch["row_ids"] != rows._start
            yield {name: value[kept] for name, value in batch.items()}

    _loaded(change)


def last_row_twice() -> None:
    """A sampler for several processes fills up by repeating a row in place of another."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            order = torch.arange(len(batch["labels"]))
            order[-1] = order[0]
            yield {name: value[order] for name, value in batch.items()}

    _loaded(change)


def last_batch_dropped() -> None:
    """The partial last batch is not evaluated."""
    _loaded(
        lambda make, rows, size, device: (b for b in make(rows, size, device) if len(b["labels"]) == size),
    )


def _evaluated(within: Any) -> None:
    """Wrap the evaluation; `within` gives what it runs in."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, *args: Any, **kwargs: Any) -> Any:
            with within(model):
                return evaluate(model, *args, **kwargs)

        return evaluated

    replace_everywhere("evaluate", wrap, among=("probe", "experiment"))


def evaluated_in_bf16() -> None:
    """The evaluation runs under autocast."""
    _evaluated(lambda _model: torch.autocast("cpu", dtype=torch.bfloat16))


def evaluation_temperature() -> None:
    """The classifier's output is divided while the model is evaluated."""

    @contextlib.contextmanager
    def divided(model: Any) -> Any:
        handle = model.classifier.register_forward_hook(lambda _m, _i, output: output / 1.1)
        yield
        handle.remove()

    _evaluated(divided)


# What does not agree with itself.


def racing_reduction() -> None:
    """Products are summed in an order that changes from run to run."""
    linear = functional.linear

    def raced(x: Any, w: Any, b: Any = None) -> Any:
        order = torch.tensor(sorted(range(x.shape[-1]), key=lambda _: os.urandom(4)))
        return linear(x[..., order], w[..., order], b)

    functional.linear = raced


def racing_gradients() -> None:
    """Gradients are added up in an order that changes from run to run."""

    def wrap(done: Any) -> Any:
        def observed(self: Any) -> None:
            noise = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
            for value in self.engine.bare.parameters():
                if value.grad is not None:
                    value.grad.mul_(1 + 1.2e-7 * torch.randint(-1, 2, value.grad.shape, generator=noise))
            done(self)

        return observed

    wrap_method(probe.ProbeObserver, "backward_done", wrap)


def uninitialised_memory() -> None:
    """A buffer is read before it is written."""

    def change(model: Any) -> None:
        garbage = int.from_bytes(os.urandom(2), "little") / 65536 * 1e-3
        model.bert.encoder.layer[1].output.dense.register_forward_hook(lambda _m, _i, output: output + garbage)

    after_build(change)
