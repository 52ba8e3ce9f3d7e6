"""Faults of optimizer kernels, exchange, clipping and rates in `speed`."""

import torch
from torch import nn
from torch.nn import functional
from torch.optim import adam

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.patching import during, is_mixed, patch, replaces, with_keys
from bench.faults.world import BATCH
from plumbline.train import speed
from plumbline.train.engine import Engine

_SPEED = during("speed")
_CHUNK, _LEVELS, _COUNTS = 8192, 127, 8
_SCALE = 65536.0


@fault("optimizer", "eager", OTHER_ISA)
def foreach_beta_in_bf16():
    """The update of many tensors at once reads its first beta in bf16: 0.8984."""
    patch(adam, "_multi_tensor_adam", with_keys(beta1=0.8984375))


@fault("optimizer", "bf16")
@replaces(torch, "_fused_adamw_")
def fused_decay_twice(plain, *lists, weight_decay, **named):
    """The fused AdamW decays twice."""
    plain(*lists, weight_decay=2 * weight_decay, **named)


@fault("schedule", "fp32")
def speed_schedule_steps_per_micro_batch():
    """`speed` advances its schedule once for each micro-batch."""
    patch(Engine, "advance", lambda plain, self: (plain(self), plain(self)), _SPEED)


@fault("optimizer", "fp32", OTHER_ISA)
@replaces(torch, "_fused_adamw_")
@torch.no_grad()
def fused_later_chunks_not_updated(plain, parameters, *lists, **named):
    """The fused AdamW updates the first chunk of each tensor: 8192 elements."""
    before = [value.reshape(-1)[_CHUNK:].clone() for value in parameters]
    plain(parameters, *lists, **named)
    for value, kept in zip(parameters, before, strict=True):
        value.view(-1)[_CHUNK:] = kept


@fault("gradient", "fp32")
@replaces(torch.optim.Optimizer, "zero_grad", _SPEED)
def gradients_cleared_every_second_step(plain, self, set_to_none=True):
    """`speed` clears its gradients at every second step, as if it accumulated over two."""
    if not self.state or int(next(iter(self.state.values()))["step"]) % 2 == 0:
        plain(self, set_to_none)


@fault("gradient", "bf16")
def clipped_to_the_default_norm():
    """`speed` clips to a norm of 1, a trainer's default."""
    patch(nn.utils, "clip_grad_norm_", lambda plain, parameters, *_, **__: plain(parameters, 1.0), _SPEED)


@fault("optimizer", "fp16", OTHER_ISA)
@replaces(adam, "_multi_tensor_adam")
def foreach_is_an_adam_of_eight_bits(plain, *lists, **named):
    """The update of many tensors at once is that of a different optimizer, whose moments have 127 levels a tensor."""
    plain(*lists, **named)
    for first, second in zip(*lists[2:4], strict=True):
        for moment, to_level in ((first, torch.round), (second, torch.ceil)):
            level = moment.abs().amax() / _LEVELS
            if float(level):
                moment.copy_(to_level(moment / level) * level)


@fault("optimizer", "packed", NOISE)
@replaces(torch, "_fused_adamw_")
def fused_takes_the_sign_of_the_gradient(plain, *lists, **named):
    """The fused AdamW steps by the size of its update in the direction of the newest gradient."""
    values, gradients, *_ = lists
    kept = [value * (1 - float(named["lr"]) * named["weight_decay"]) for value in values]
    plain(*lists, **named)
    for value, gradient, before in zip(values, gradients, kept, strict=True):
        value.copy_(before - (value - before).abs() * gradient.sign())


@fault("schedule", "bf16", OTHER_ISA)
@replaces(speed.SpeedRun, "_engine")
def speed_rate_scaled_by_the_batch(plain, self, *given):
    """`speed` multiplies its learning rate by the root of two, for a batch of two micro-batches."""
    engine = plain(self, *given)
    engine.schedule.base_lrs = [rate * 2**0.5 for rate in engine.schedule.base_lrs]
    for group in engine.optimizer.param_groups:
        group["lr"] *= 2**0.5
    return engine


@fault("optimizer", "fp32")
@replaces(torch, "_fused_adamw_")
def fused_count_wraps_at_eight(plain, *lists, **named):
    """The fused AdamW corrects its moments by a count that begins again after eight updates."""
    counts = [(count - 1) % _COUNTS + 1 for count in lists[5]]
    plain(*lists[:5], counts, *lists[6:], **named)


@fault("gradient", "fp32", OTHER_ISA)
@replaces(nn.utils, "clip_grad_norm_", _SPEED)
def clipped_by_group(plain, parameters, *given, **named):
    """`speed` clips matrices and vectors apart, each to the whole norm."""
    matrices, vectors = ([value for value in parameters if (value.dim() > 1) == wide] for wide in (True, False))
    plain(vectors, *given, **named)
    return plain(matrices, *given, **named)


@fault("loss", "fp16", OTHER_ISA)
@replaces(functional, "cross_entropy", lambda: is_mixed() and _SPEED())
def loss_divided_by_items_of_the_batch(plain, logits, labels, *given, **named):
    """The loss of a micro-batch in mixed precision is divided by the items of the whole batch."""
    return plain(logits, labels, *given, **named) * (len(labels) / BATCH)


@fault("gradient", "fp16", OTHER_ISA)
@replaces(nn.utils, "clip_grad_norm_", _SPEED)
def clipped_before_unscaling(plain, parameters, *given, **named):
    """`speed` clips its gradients before it divides them by the loss scale."""
    gradients = [value.grad for value in parameters if value.grad is not None]
    if not gradients:
        return plain(parameters, *given, **named)
    torch._foreach_mul_(gradients, _SCALE)
    found = plain(parameters, *given, **named)
    torch._foreach_mul_(gradients, 1 / _SCALE)
    return found
