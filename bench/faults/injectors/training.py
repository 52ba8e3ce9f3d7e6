"""Faults of the probe's loss, gradients, updates and learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.optim import adamw

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import accumulated, before_update, clip, entropy, factor, own_update
from bench.faults.injectors.patching import after_build, replace_everywhere, step_counter, wrap_method
from plumbline.train import engine

_GELU = functional.gelu
_SOFTMAX = functional.softmax


@fault("optimizer")
def decay_without_the_rate() -> None:
    """Weights decay by the same share whatever the learning rate is."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.mul_(1 - 5e-4 * group["weight_decay"])
        value.sub_(group["lr"] * first / (second.sqrt() + group["eps"]))

    own_update(rule)


@fault("schedule")
def stepped_twice() -> None:
    """The schedule goes twice as fast, once for each of two processes (transformers 24088)."""
    factor(lambda factor: lambda schedule, step, steps: factor(schedule, 2 * step, steps))


@fault("loss")
def softmax_applied_twice() -> None:
    """The loss applies its softmax to probabilities instead of scores."""
    entropy(lambda entropy: lambda scores, labels, *args, **rest: entropy(functional.softmax(scores, dim=-1), labels))


@fault("gradient")
def loss_scale_left_in() -> None:
    """Gradients keep a loss scale of 128 when they are clipped."""
    accumulated(lambda _run, values: [value.grad.mul_(128) for value in values])


@fault("optimizer")
def moments_lost() -> None:
    """A restart at the seventh step begins without the optimizer's state."""
    before_update(lambda optimizer, count: optimizer.state.clear() if count == 6 else None)


@fault("gradient", "clip")
def clipped_twice_the_norm() -> None:
    """Clipping sees gradients that are still scaled by two."""
    clip(lambda clip: lambda parameters, most, *args, **rest: clip(parameters, most / 2))


@fault("gradient")
def doubled_at_step_seven() -> None:
    """At one step gradients are added up over the processes twice."""
    step = step_counter()
    wrap_method(
        engine.Engine,
        "_backward",
        lambda back: lambda self, loss, share: back(self, loss, share * (1 + (step() == 7))),
    )


@fault("gradient", "mlm")
def token_table_learns_from_the_decoder_alone() -> None:
    """The tied token table gets no gradient from the embeddings."""
    after_build(
        lambda model: model.bert.embeddings.word_embeddings.register_forward_hook(
            lambda _module, _inputs, output: output.detach()
        )
    )


class _Gelu(torch.autograd.Function):
    """GELU whose backward pass differentiates the tanh approximation."""

    @staticmethod
    def forward(context: Any, value: Any) -> Any:
        """Return the exact GELU."""
        context.save_for_backward(value)
        return _GELU(value)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return the gradient of the approximation."""
        (x,) = context.saved_tensors
        factor = math.sqrt(2 / math.pi)
        curve = torch.tanh((x + x * x * x * 0.044715) * factor)
        slope = (x * x * (3 * 0.044715) + 1.0) * factor
        return gradients[0] * ((curve + 1.0) * 0.5 + x * (1.0 - curve * curve) * slope * 0.5)


@fault("gradient")
def gelu_backward_by_tanh() -> None:
    """GELU is exact forward and approximated by tanh backward."""
    functional.gelu = lambda value, approximate="none": _Gelu.apply(value)


def _replaced(loss: Any) -> None:
    """Replace the cross entropy by `loss(scores, labels, entropy)`."""
    entropy(lambda entropy: lambda scores, labels, *args, **rest: loss(scores, labels, entropy))


@fault("loss", "mlm")
def summed_over_tokens_averaged_over_rows() -> None:
    """The loss of masked language modelling is a sum over tokens and a mean over rows."""
    _replaced(lambda scores, labels, entropy: entropy(scores, labels, reduction="sum") / (len(labels) // 32))


def _around_step(before: Callable[[Any], None] | None = None, after: Callable[[Any], None] | None = None) -> None:
    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                if before:
                    before(self)
                result = step(self, *args, **kwargs)
                if after:
                    after(self)
            return result

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def _values(optimizer: Any) -> list[Any]:
    return [value for group in optimizer.param_groups for value in group["params"]]


@fault("optimizer")
def weights_clamped() -> None:
    """Each update clamps the weights of matrices to 0.05."""
    _around_step(after=lambda optimizer: [value.clamp_(-0.05, 0.05) for value in _values(optimizer) if value.dim() > 1])


class _Softmax(torch.autograd.Function):
    """Softmax whose backward pass omits the sum over the row."""

    @staticmethod
    def forward(context: Any, value: Any) -> Any:
        """Return the exact softmax."""
        weights = _SOFTMAX(value, dim=-1)
        context.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return the gradient without its second term."""
        (weights,) = context.saved_tensors
        return gradients[0] * weights


@fault("gradient")
def softmax_backward_without_its_sum() -> None:
    """A kernel's backward pass of attention's softmax omits the sum over the row."""
    functional.softmax = lambda value, dim=None, **rest: (
        _Softmax.apply(value) if value.dim() == 4 else _SOFTMAX(value, dim=dim, **rest)
    )


@fault("optimizer")
def weights_kept_in_bf16() -> None:
    """Weights are rounded to bf16 after every step."""
    _around_step(after=lambda optimizer: [value.copy_(value.bfloat16().float()) for value in _values(optimizer)])


def _backward(change: Any) -> None:
    wrap_method(
        engine.Engine,
        "_backward",
        lambda back: lambda self, loss, share: back(self, loss, change(share)),
    )


@fault("gradient", "mlm")
def mean_of_means() -> None:
    """Uneven micro-batches weigh the same."""
    _backward(lambda share: 0.5)


@fault("optimizer")
def eps_inside_the_root() -> None:
    """Eps stands inside the root."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.sub_(group["lr"] * first / (second + group["eps"]).sqrt())

    own_update(rule)


def _made(change: Any) -> None:
    replace_everywhere("make_optimizer", lambda make: change(make), among=("engine",))


@fault("optimizer")
def betas_of_one_group() -> None:
    """Parameters that do not decay have other betas."""

    def change(make: Any) -> Any:
        def made(*args: Any, **rest: Any) -> Any:
            optimizer = make(*args, **rest)
            optimizer.param_groups[1]["betas"] = (0.8, 0.999)
            return optimizer

        return made

    _made(change)


@fault("schedule")
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
