"""Two independent faults of one training, of which the later is hidden by the earlier."""

from __future__ import annotations

from typing import Any

import torch

from bench.faults.catalogue import Entry
from bench.faults.injectors.hooks import before_update, clip, entropy, factor, loaded
from bench.faults.injectors.patching import after_build


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


ROWS = (
    Entry(
        "bf16-gelu-and-short-evaluation", "combined", "precision + evaluation",
        inject="operators.gelu_in_bf16,combined.evaluated_shorter",
    ),
    Entry("labels-and-gelu", "combined", "data.labels + operator", "operators.tanh_gelu", "files.one_label"),
    Entry(
        "segment-and-smoothing", "combined", "tokenization + loss",
        inject="inputs.second_segment,combined.little_smoothing",
    ),
    Entry(
        "second-softmax-and-moments", "combined", "loss + optimizer",
        inject="training.softmax_applied_twice,combined.states_exchanged_by_a_restart",
    ),
    Entry("gelu-and-decay", "combined", "operator + schedule", inject="operators.tanh_gelu,combined.decay_end"),
    Entry(
        "weights-and-clipping", "combined", "weights.init + gradient",
        inject="combined.other_isa_weights,combined.clipping_off", workload="clip",
    ),
    Entry("order-and-smoothing", "combined", "data.order + loss", inject="inputs.order_seed,combined.label_smoothing"),
)  # fmt: skip
