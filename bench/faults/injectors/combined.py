"""Two independent faults of one training, of which the later is hidden by the earlier."""

import torch
from torch.nn import functional

from bench.faults.catalogue import Entry
from bench.faults.injectors.hooks import after_build, before_update
from bench.faults.injectors.patching import by, patch, replaces, with_keys
from plumbline.train import evaluation, optimizers


@replaces(evaluation, "make_loader")
def evaluated_shorter(plain, rows, size, device):
    """Texts are cut at sixteen tokens for evaluation."""
    for batch in plain(rows, size, device):
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            batch[name][:, 16:] = 0
        yield batch


def little_smoothing():
    """Labels are smoothed by a hundredth."""
    patch(functional, "cross_entropy", with_keys(label_smoothing=0.01))


@by(before_update)
def states_exchanged_by_a_restart(optimizer, count):
    """A restart at the seventh step exchanges two parameters' moments (Lightning-AI/pytorch-lightning#17025)."""
    if count == 6:
        first, second, *_ = (value for value in optimizer.param_groups[0]["params"] if value.shape == (32, 32))
        optimizer.state[first], optimizer.state[second] = optimizer.state[second], optimizer.state[first]


def decay_end():
    """The decay ends later."""
    patch(optimizers, "schedule_factor", lambda plain, schedule, step, steps: plain(schedule, step, steps + 10))


@by(after_build)
def other_isa_weights(model):
    """Four of ten values off by at most 2e-6, as from another instruction set."""
    generator = torch.Generator().manual_seed(5)
    for value in model.parameters():
        noise = (torch.rand(value.shape, generator=generator) - 0.5) * 4e-6
        value.add_(noise * (torch.rand(value.shape, generator=generator) < 0.39))


def clipping_off():
    """Gradients are not clipped."""
    patch(torch.nn.utils, "clip_grad_norm_", lambda plain, parameters, *_, **__: plain(parameters, 1e9))


def label_smoothing():
    """Labels are smoothed."""
    patch(functional, "cross_entropy", with_keys(label_smoothing=0.1))


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
