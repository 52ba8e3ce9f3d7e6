"""Fourth held-out set: faults of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from bench.faults.injectors.patching import after_build, step_counter, wrap_method
from bench.faults.injectors.training import _clip
from plumbline.train import engine


def _accumulated(change: Callable[[Any, list[Any]], None]) -> None:
    """Change the accumulated gradients before they are recorded and clipped."""

    def wrap(update: Any) -> Any:
        def updated(self: Any) -> None:
            change(self, [value for value in self.bare.parameters() if value.grad is not None])
            update(self)

        return updated

    wrap_method(engine.Engine, "_update", wrap)


def gradients_of_the_step_before() -> None:
    """Each update uses the gradients of the step before."""

    def change(run: Any, values: list[Any]) -> None:
        now = [value.grad.clone() for value in values]
        for value, before in zip(values, run.__dict__.get("gradients_before", now), strict=True):
            value.grad.copy_(before)
        run.__dict__["gradients_before"] = now

    _accumulated(change)


def small_gradients_dropped() -> None:
    """A compressed exchange keeps the largest tenth of each gradient."""

    def change(_run: Any, values: list[Any]) -> None:
        for value in values:
            sizes = value.grad.abs().reshape(-1)
            limit = sizes.topk(max(1, len(sizes) // 10)).values[-1]
            value.grad.mul_((value.grad.abs() >= limit).to(value.grad))

    _accumulated(change)


def gradients_as_signs() -> None:
    """A compressed exchange sends signs and a mean size of each gradient."""
    _accumulated(
        lambda _run, values: [value.grad.copy_(value.grad.sign() * value.grad.abs().mean()) for value in values]
    )


def gradient_lost_in_transfer() -> None:
    """At the sixth step a transfer returns zeros for one matrix (pytorch/pytorch#84803)."""
    step = step_counter()

    def change(run: Any, _values: list[Any]) -> None:
        if step() == 5:
            run.bare.bert.encoder.layer[0].output.dense.weight.grad.zero_()

    _accumulated(change)


def token_table_counted_twice() -> None:
    """The norm for clipping counts the token table twice (NVIDIA/Megatron-LM#7228)."""

    def clip(parameters: Any, most: float, *_args: Any, **_rest: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        total = torch.stack([gradient.norm() for gradient in (gradients[0], *gradients)]).norm()
        for gradient in gradients:
            gradient.mul_((most / (total + 1e-6)).clamp(max=1.0))
        return total

    _clip(lambda _clip: clip)


def clipped_after_each_micro_batch() -> None:
    """The sum of gradients is clipped after each micro-batch."""

    def wrap(back: Any) -> Any:
        def clipped(self: Any, loss: Any, share: float) -> None:
            back(self, loss, share)
            torch.nn.utils.clip_grad_norm_(self._trainable, self.spec.optimizer.max_grad_norm)

        return clipped

    wrap_method(engine.Engine, "_backward", wrap)


def decoder_gradient_lost() -> None:
    """The tied token table gets no gradient from the decoder."""

    def change(model: Any) -> None:
        decoder = model.cls.predictions.decoder
        decoder.forward = lambda states: functional.linear(states, decoder.weight.detach(), decoder.bias)

    after_build(change)


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


_GELU = functional.gelu


def gelu_backward_by_tanh() -> None:
    """GELU is exact forward and approximated by tanh backward."""
    functional.gelu = lambda value, approximate="none": _Gelu.apply(value)


def norm_backward_without_its_means() -> None:
    """LayerNorm's backward pass treats mean and variance as constants."""
    norm = functional.layer_norm

    def constant(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        exact = norm(value, shape, weight, bias, eps).detach()
        fixed = value.detach()
        centred = fixed - fixed.mean(-1, keepdim=True)
        size = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        path = (value - fixed + centred) * size
        path = path if weight is None else path * weight + bias
        return exact + (path - path.detach())

    functional.layer_norm = constant


def scores_without_gradient() -> None:
    """Attention's weights are computed without a gradient."""
    softmax = functional.softmax

    def detached(value: Any, dim: int | None = None, **rest: Any) -> Any:
        weights = softmax(value, dim=dim, **rest)
        return weights.detach() if value.dim() == 4 else weights

    functional.softmax = detached


def micro_batches_weighted_by_tokens() -> None:
    """Gradients of micro-batches are weighted by tokens instead of rows (huggingface/transformers#35203)."""

    def cut(pieces: Any) -> Any:
        def weighted(self: Any, batch: Any) -> Any:
            whole = list(pieces(self, batch))
            total = sum(int(piece["attention_mask"].sum()) for piece, _ in whole)
            for piece, share in whole:
                self.__dict__["token_weight"] = int(piece["attention_mask"].sum()) / total / share
                yield piece, share

        return weighted

    wrap_method(engine.Engine, "_micro_batches", cut)
    wrap_method(
        engine.Engine,
        "_backward",
        lambda back: lambda self, loss, share: back(self, loss, share * self.token_weight),
    )
