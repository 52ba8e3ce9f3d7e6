"""Faults of the probe's loss, gradients, updates and learning rates."""

import math

import torch
from torch.nn import functional

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import accumulated, after_build, after_update, before_update, own_update, with_rates
from bench.faults.injectors.patching import by, last_step, patch, replaces
from plumbline.train import engine, optimizers
from plumbline.train.engine import Engine

_GELU = functional.gelu
_SOFTMAX = functional.softmax


@fault("optimizer")
@by(own_update)
def decay_without_the_rate(group, value, first, second):
    """Weights decay by the same share whatever the learning rate is."""
    value.mul_(1 - 5e-4 * group["weight_decay"])
    value.sub_(group["lr"] * first / (second.sqrt() + group["eps"]))


@fault("schedule")
def stepped_twice():
    """The schedule goes twice as fast, once for each of two processes (transformers 24088)."""
    patch(optimizers, "schedule_factor", lambda plain, schedule, step, steps: plain(schedule, 2 * step, steps))


@fault("loss")
@replaces(functional, "cross_entropy")
def softmax_applied_twice(plain, scores, labels, *_, **__):
    """The loss applies its softmax to probabilities instead of scores."""
    return plain(functional.softmax(scores, dim=-1), labels)


@fault("gradient")
def loss_scale_left_in():
    """Gradients keep a loss scale of 128 when they are clipped."""
    accumulated(lambda values: [value.grad.mul_(128) for value in values])


@fault("optimizer")
def moments_lost():
    """A restart at the seventh step begins without the optimizer's state."""
    before_update(lambda optimizer, count: optimizer.state.clear() if count == 6 else None)


@fault("gradient", "clip")
def clipped_twice_the_norm():
    """Clipping sees gradients that are still scaled by two."""
    patch(torch.nn.utils, "clip_grad_norm_", lambda plain, parameters, most, *_, **__: plain(parameters, most / 2))


@fault("gradient")
@replaces(Engine, "_backward")
def doubled_at_step_seven(plain, self, loss, share):
    """At one step gradients are added up over the processes twice."""
    plain(self, loss, share * (1 + (last_step() == 7)))


@fault("gradient", "mlm")
@by(after_build)
def token_table_learns_from_the_decoder_alone(model):
    """The tied token table gets no gradient from the embeddings."""
    model.bert.embeddings.word_embeddings.register_forward_hook(lambda _module, _inputs, output: output.detach())


class _Gelu(torch.autograd.Function):
    """GELU whose backward pass differentiates the tanh approximation."""

    @staticmethod
    def forward(context, value):
        """Return the exact GELU."""
        context.save_for_backward(value)
        return _GELU(value)

    @staticmethod
    def backward(context, *gradients):
        """Return the gradient of the approximation."""
        (x,) = context.saved_tensors
        factor = math.sqrt(2 / math.pi)
        curve = torch.tanh((x + x * x * x * 0.044715) * factor)
        slope = (x * x * (3 * 0.044715) + 1.0) * factor
        return gradients[0] * ((curve + 1.0) * 0.5 + x * (1.0 - curve * curve) * slope * 0.5)


@fault("gradient")
def gelu_backward_by_tanh():
    """GELU is exact forward and approximated by tanh backward."""
    functional.gelu = lambda value, approximate="none": _Gelu.apply(value)


@fault("loss", "mlm")
@replaces(functional, "cross_entropy")
def summed_over_tokens_averaged_over_rows(plain, scores, labels, *_, **__):
    """The loss of masked language modelling is a sum over tokens and a mean over rows."""
    return plain(scores, labels, reduction="sum") / (len(labels) // 32)


@fault("optimizer")
def weights_clamped():
    """Each update clamps the weights of matrices to 0.05."""
    after_update(lambda value: value.clamp_(-0.05, 0.05) if value.dim() > 1 else None)


class _Softmax(torch.autograd.Function):
    """Softmax whose backward pass omits the sum over the row."""

    @staticmethod
    def forward(context, value):
        """Return the exact softmax."""
        weights = _SOFTMAX(value, dim=-1)
        context.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(context, *gradients):
        """Return the gradient without its second term."""
        (weights,) = context.saved_tensors
        return gradients[0] * weights


@fault("gradient")
@replaces(functional, "softmax")
def softmax_backward_without_its_sum(plain, value, dim=None, **rest):
    """A kernel's backward pass of attention's softmax omits the sum over the row."""
    return _Softmax.apply(value) if value.dim() == 4 else plain(value, dim=dim, **rest)


@fault("optimizer")
def weights_kept_in_bf16():
    """Weights are rounded to bf16 after every step."""
    after_update(lambda value: value.copy_(value.bfloat16().float()))


@fault("gradient", "mlm")
def mean_of_means():
    """Uneven micro-batches weigh the same."""
    patch(Engine, "_backward", lambda plain, self, loss, _: plain(self, loss, 0.5))


@fault("optimizer")
@by(own_update)
def eps_inside_the_root(group, value, first, second):
    """Eps stands inside the root."""
    value.mul_(1 - group["lr"] * group["weight_decay"])
    value.sub_(group["lr"] * first / (second + group["eps"]).sqrt())


@fault("optimizer")
@replaces(engine, "make_optimizer")
def betas_of_one_group(plain, *given, **named):
    """Parameters that do not decay have other betas."""
    optimizer = plain(*given, **named)
    optimizer.param_groups[1]["betas"] = (0.8, 0.999)
    return optimizer


@fault("schedule")
def rate_inside_the_step():
    """The optimizer multiplies its learning rate by 1.1 inside its step; the log shows the schedule's."""
    with_rates(lambda group: group["lr"] * 1.1)
