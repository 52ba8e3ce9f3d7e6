"""Attempts at a wrong pass in production kernels."""

import torch
from torch.nn import functional

from bench.faults.injectors.hooks import parameters_of, without_tail
from bench.faults.injectors.patching import SDPA, is_compiling, is_mixed, nothing, of_output, patch, replaces, with_keys
from plumbline.train import engine


def fused_without_momentum():
    """Fused AdamW takes the newest gradient alone."""
    patch(torch, "_fused_adamw_", with_keys(beta1=0.0))


@replaces(torch, "_fused_adamw_")
def fused_with_late_correction(plain, *tensors, **named):
    """Fused AdamW corrects its moments as at step 1000."""
    *others, steps = tensors
    plain(*others, [step + 1000 for step in steps], **named)


def foreach_with_other_momentum():
    """AdamW over lists of tensors weighs the newest gradient twice."""
    patch(torch, "_foreach_lerp_", lambda plain, moments, gradients, weight: plain(moments, gradients, weight * 2))


def _in_short(name, change):
    """Change a function of `torch.nn.functional` where autocast is on, or its first argument is in a short format."""

    def short(plain, value, *given, **named):
        if is_mixed() or value.dtype in (torch.bfloat16, torch.float16):
            return change(plain, value, *given, **named)
        return plain(value, *given, **named)

    patch(functional, name, short)


def sdpa_unscaled():
    """Fused attention does not scale its scores."""
    _in_short(SDPA, with_keys(scale=1.0))


def sdpa_loses_a_head():
    """Fused attention leaves the last head zero."""
    _in_short(SDPA, of_output(lambda output: torch.cat([output[:, :-1], torch.zeros_like(output[:, -1:])], dim=1)))


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(_context, value):
        return value.view_as(value)

    @staticmethod
    def backward(_context, *gradients):
        return gradients[0] * 0.5


def sdpa_with_halved_backward():
    """Fused attention halves the gradients of queries and keys."""

    def halved(plain, query, key, *given, **named):
        return plain(_Halved.apply(query), _Halved.apply(key), *given, **named)

    _in_short(SDPA, halved)


def autocast_rounds_the_loss():
    """Autocast lists the loss among the functions of bf16: its mean is rounded."""
    patch(functional, "cross_entropy", of_output(lambda loss: loss.bfloat16().float()), is_mixed)


def linear_loses_a_split():
    """A product in bf16 does not add up its last eighth of terms."""

    def split(plain, value, weight, bias=None):
        kept = weight.shape[1] - weight.shape[1] // 8
        return plain(value[..., :kept], weight[:, :kept], bias)

    _in_short("linear", split)


def bias_gradient_of_half_of_the_tokens():
    """A reduction in bf16 adds up half of a bias's gradient."""

    def half(plain, value, weight, bias=None):
        return plain(value, weight, None if bias is None else _Halved.apply(bias))

    _in_short("linear", half)


def norm_without_its_tail():
    """LayerNorm leaves the last eight features zero in mixed precision."""
    _in_short("layer_norm", of_output(lambda output: without_tail(output, None, 8)))


@replaces(torch.amp.GradScaler, "unscale_")
def scaler_unscales_by_half(plain, self, optimizer):
    """The gradients are twice too large after unscaling."""
    plain(self, optimizer)
    for value in parameters_of(optimizer):
        if value.grad is not None:
            value.grad.mul_(2)


def scaler_skips_every_update():
    """The scaler takes every gradient for infinite."""
    patch(torch.amp.GradScaler, "step", nothing)


def packed_texts_see_each_other():
    """The tokens of a packed row attend to all of its texts."""
    patch(engine, "mask_of_texts", lambda plain, model, texts: plain(model, (texts > 0).long()))


@replaces(engine.Engine, "_packed")
def packed_positions_run_on(plain, self, piece, packing):
    """The positions of a packed row do not begin again at each text."""
    inputs = plain(self, piece, packing)
    places = inputs["position_ids"]
    return {**inputs, "position_ids": torch.arange(places.shape[-1]).expand_as(places)}


def compiled_gelu_as_relu():
    """The compiler takes GELU for a ReLU."""
    patch(functional, "gelu", lambda _, value, *__, **___: torch.relu(value), is_compiling)


def compiled_norm_with_other_eps():
    """The compiler's LayerNorm has an eps of 0.01."""
    patch(functional, "layer_norm", lambda plain, *given: plain(*given[:4], 0.01), is_compiling)
