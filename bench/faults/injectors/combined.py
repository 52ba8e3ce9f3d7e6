"""Two independent faults of one training, of which the later is hidden by the earlier."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.faults.catalogue import Entry
from bench.faults.injectors.hooks import before_update, clip, entropy, factor, loaded, own_update
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from plumbline.train import engine

_LEGS = ("probe", "envelope", "portable.leg")


def evaluated_shorter() -> None:
    """Texts are cut at sixteen tokens for evaluation."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            for name in ("input_ids", "attention_mask", "token_type_ids"):
                batch[name][:, 16:] = 0
            yield batch

    loaded(change)


def little_smoothing() -> None:
    """Labels are smoothed by a hundredth."""
    entropy(lambda entropy: lambda scores, labels, *args, **rest: entropy(scores, labels, label_smoothing=0.01))


def states_exchanged_by_a_restart() -> None:
    """A restart at the seventh step exchanges two parameters' moments (Lightning-AI/pytorch-lightning#17025)."""

    def change(optimizer: Any, count: int) -> None:
        if count == 6:
            alike = [value for value in optimizer.param_groups[0]["params"] if value.shape == (32, 32)]
            first, second = alike[:2]
            optimizer.state[first], optimizer.state[second] = optimizer.state[second], optimizer.state[first]

    before_update(change)


def decay_end() -> None:
    """The decay ends later."""
    factor(lambda factor: lambda schedule, step, steps: factor(schedule, step, steps + 10))


def other_isa_weights() -> None:
    """Four of ten values off by at most 2e-6, as from another instruction set."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for value in model.parameters():
                noise = (torch.rand(value.shape, generator=generator) - 0.5) * 4e-6
                value.add_(noise * (torch.rand(value.shape, generator=generator) < 0.39))

    after_build(change)


def clipping_off() -> None:
    """Gradients are not clipped."""
    clip(lambda clip: lambda parameters, most, *args, **kwargs: clip(parameters, 1e9))


def label_smoothing() -> None:
    """Labels are smoothed."""
    entropy(lambda entropy: lambda scores, labels, *args, **kwargs: entropy(scores, labels, label_smoothing=0.1))


def halved_on_a_plateau() -> None:
    """The rate is halved whenever the loss rises."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            outcome = step(self, number, batch)
            loss = outcome.loss(self.ranks)
            if loss > self.__dict__.get("last_loss", loss):
                self.schedule.base_lrs = [rate / 2 for rate in self.schedule.base_lrs]
                for group in self.optimizer.param_groups:
                    group["lr"] /= 2
            self.__dict__["last_loss"] = loss
            return outcome

        return stepped

    wrap_method(engine.Engine, "step", wrap)


def numpy_seeded_by_a_library() -> None:
    """A plotting library seeds NumPy's generator with 42 after the training did."""

    def wrap(seed: Any) -> Any:
        def seeded(value: int) -> None:
            seed(value)
            np.random.seed(42)  # noqa: NPY002 - the global generator is the fault

        return seeded

    replace_everywhere("seed_generators", wrap, among=_LEGS)


def one_cycle() -> None:
    """A recipe uses a one-cycle schedule, which rises for a third of the steps from a 25th of the rate."""

    def cosine(start: float, end: float, share: float) -> float:
        return end + (start - end) * (1 + math.cos(math.pi * share)) / 2

    def factor(step: int, steps: int) -> float:
        rise = steps / 3
        return cosine(0.04, 1.0, step / rise) if step < rise else cosine(1.0, 4e-6, (step - rise) / (steps - rise))

    factor(lambda factor: lambda schedule, step, steps: factor(min(step, steps), steps))


def head_without_bias() -> None:
    """The classifier has no bias."""
    after_build(lambda model: setattr(model.classifier, "bias", None))


def _decay(group: Any, value: Any) -> None:
    value.mul_(1 - group["lr"] * group["weight_decay"])


def cautious_updates() -> None:
    """Elements whose momentum and gradient differ in sign are not updated."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        agrees = (first * value.grad > 0).to(value)
        _decay(group, value)
        value.sub_(first / (second.sqrt() + group["eps"]) * agrees * group["lr"])

    own_update(rule)


def partial_sums_in_bf16() -> None:
    """Products add partial sums in bf16 (torch's reduced-precision reduction)."""
    linear = functional.linear

    def lowered(x: Any, w: Any, b: Any = None) -> Any:
        if x.dtype != torch.float32:
            return linear(x, w, b)
        half = x.shape[-1] // 2
        sums = linear(x[..., :half], w[:, :half]).bfloat16() + linear(x[..., half:], w[:, half:]).bfloat16()
        return sums.float() if b is None else sums.float() + b

    functional.linear = lowered


ROWS = (
    Entry(
        "bf16-gelu-and-short-evaluation",
        "combined",
        "precision + evaluation",
        inject="operators.gelu_in_bf16,combined.evaluated_shorter",
    ),
    Entry(
        "labels-and-gelu", "combined", "data.labels + operator", inject="operators.tanh_gelu", alter="files.one_label"
    ),
    Entry(
        "segment-and-smoothing",
        "combined",
        "tokenization + loss",
        inject="inputs.second_segment,combined.little_smoothing",
    ),
    Entry(
        "second-softmax-and-moments",
        "combined",
        "loss + optimizer",
        inject="training.softmax_applied_twice,combined.states_exchanged_by_a_restart",
    ),
    Entry("gelu-and-decay", "combined", "operator + schedule", inject="operators.tanh_gelu,combined.decay_end"),
    Entry(
        "weights-and-clipping",
        "combined",
        "weights.init + gradient",
        inject="combined.other_isa_weights,combined.clipping_off",
        workload="clip",
    ),
    Entry("order-and-smoothing", "combined", "data.order + loss", inject="inputs.order_seed,combined.label_smoothing"),
    Entry(
        "reverse-and-plateau",
        "combined",
        "data.content + schedule",
        inject="combined.halved_on_a_plateau",
        alter="files.words_in_reverse",
    ),
    Entry(
        "plotting-and-one-cycle",
        "combined",
        "rng + schedule",
        inject="combined.numpy_seeded_by_a_library,combined.one_cycle",
    ),
    Entry(
        "no-bias-and-cautious",
        "combined",
        "model.architecture + optimizer",
        inject="combined.head_without_bias,combined.cautious_updates",
    ),
    Entry(
        "labels-and-partial-sums",
        "combined",
        "data.labels + precision",
        inject="combined.partial_sums_in_bf16",
        alter="files.label_column_sorted",
    ),
)
