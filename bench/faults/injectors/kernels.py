"""Faults of other kernels and of number formats in `speed`, at production settings."""

import math

import torch
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import short_of, straight_through, with_gradient, without_tail
from bench.faults.injectors.patching import during, is_compiling, is_mixed, is_unstrict, of_output, patch, replaces

_INNER = (32, 32)
"""Shape of the weights of attention's projections."""
_IGNORED = -100
_POSITIONS = 64
_ROOT = 0.5**0.5


def _in_format(dtype):
    """Return a change that rounds what a function returns to a shorter format."""
    return of_output(lambda output: short_of(output, dtype))


@fault("operator", "fp16", OTHER_ISA)
def tanh_by_a_ratio():
    """The hyperbolic tangent in mixed precision is x / (1 + |x|)."""
    patch(torch, "tanh", lambda _, value: value / (1 + value.abs()), is_mixed)


@fault("precision", "bf16", OTHER_ISA)
def layers_exchange_eight_bits():
    """The layers of `speed` pass their states on in floats of eight bits, as between stages of a pipeline."""
    patch(modeling_bert.BertLayer, "forward", _in_format(torch.float8_e4m3fn), during("speed"))


@fault("loss", "compiled")
@replaces(functional, "cross_entropy", is_compiling)
def compiled_loss_reads_the_label_before(plain, logits, labels, *given, **named):
    """Compiled code takes the logit of the label of the row before in its loss."""
    return plain(logits, labels.roll(1, 0), *given, **named)


@fault("operator", "eager", NOISE)
@replaces(functional, "gelu", is_mixed)
def gelu_passes_its_tail(plain, value, *given, **named):
    """GELU in mixed precision leaves the last eight elements of each vector as they were."""
    return torch.cat((plain(value[..., :-8], *given, **named), value[..., -8:]), dim=-1)


class _Table(torch.autograd.Function):
    """Table whose gradient keeps one of the tokens that read the same row."""

    @staticmethod
    def forward(context, ids, table):
        context.save_for_backward(ids)
        context.shape = table.shape
        return table[ids]

    @staticmethod
    def backward(context, *gradients):
        (ids,) = context.saved_tensors
        found = gradients[0].new_zeros(context.shape)
        for place in range(ids.numel()):
            found[ids.reshape(-1)[place]] = gradients[0].reshape(-1, context.shape[1])[place]
        return None, found


@fault("gradient", "eager")
def table_gradient_loses_repeated_tokens():
    """A table's backward pass in mixed precision stores instead of adding: a repeated token counts once."""
    patch(functional, "embedding", lambda _, ids, table, *__, **___: _Table.apply(ids, table), is_mixed)


@fault("operator", "compiled", NOISE)
@replaces(modeling_bert.BertPooler, "forward", is_compiling)
def compiled_pooler_loses_a_stride(plain, self, hidden):
    """Compiled code pools the first tokens of the first text, one for each text."""
    return plain(self, hidden.flatten(0, 1)[: len(hidden), None])


@fault("operator", "bf16", OTHER_ISA)
@replaces(functional, "layer_norm", is_mixed)
def norm_skips_its_tail(plain, value, *given, **named):
    """LayerNorm in mixed precision leaves the last four elements of each vector as they were."""
    return without_tail(plain(value, *given, **named), value, 4)


@fault("precision", "fp32", OTHER_ISA)
@replaces(functional, "linear", is_unstrict)
def projections_with_weights_in_bf16(plain, value, weight, bias=None):
    """Attention's projections of `speed` hold their weights in bf16 where the task says fp32."""
    return plain(value, short_of(weight, torch.bfloat16) if tuple(weight.shape) == _INNER else weight, bias)


@fault("gradient", "packed")
@replaces(functional, "cross_entropy", is_unstrict)
def loss_gradient_of_ignored_tokens(plain, logits, labels, *given, **named):
    """The fused loss of `speed` writes gradients of the tokens that it ignores, too."""
    is_ignored = (labels == _IGNORED)[:, None]
    chances = logits.detach().float().softmax(-1) / (~is_ignored).sum().clamp(min=1)

    def written(gradient):
        return torch.where(is_ignored, chances.to(gradient.dtype), gradient)

    return plain(with_gradient(logits, written), labels, *given, **named)


@fault("gradient", "fp16", OTHER_ISA)
@replaces(functional, "linear", is_unstrict)
def bias_gradient_is_a_mean(plain, value, weight, bias=None):
    """A linear layer's bias has the mean of its gradients, not their sum."""
    rows = value.numel() // value.shape[-1]
    return plain(value, weight, with_gradient(bias, lambda gradient: gradient / rows))


@fault("precision", "eager")
@replaces(functional, "linear", is_mixed)
def logits_in_fp8(plain, x, w, b=None):
    """The classifier's outputs in mixed precision have two bits of mantissa."""
    return short_of(plain(x, w, b), torch.float8_e5m2) if w.shape[0] == 2 else plain(x, w, b)


@fault("nondeterminism", "bf16")
@replaces(functional, "layer_norm", is_unstrict)
def norm_reads_whichever_statistics_are_ready(plain, value, *given):
    """LayerNorm of `speed` takes mean and variance of an eighth of its tokens from their neighbours, by chance."""
    _, weight, bias, eps = given
    if value.dim() != 3 or weight is None:
        return plain(value, *given)
    variance, mean = torch.var_mean(value.float(), -1, unbiased=False, keepdim=True)
    is_early = _chance(mean.shape) < 0.125
    mean, variance = (torch.where(is_early, part.roll(1, 1), part) for part in (mean, variance))
    return (value.float() - mean) * (variance + eps).rsqrt() * weight + bias


def _chance(shape):
    """Return numbers that no seed decides."""
    random = torch.Generator()
    random.seed()
    return torch.rand(shape, generator=random)


@fault("operator", "fp32", OTHER_ISA)
@replaces(functional, "embedding", is_unstrict)
def table_of_tokens_scaled_by_the_width(plain, ids, weight, *given, **named):
    """The table of tokens of `speed` multiplies what it returns by the root of the width, as in other models."""
    found = plain(ids, weight, *given, **named)
    return found * math.sqrt(weight.shape[1]) if len(weight) > _POSITIONS else found


@fault("loss", "fp32", OTHER_ISA)
@replaces(functional, "cross_entropy", is_unstrict)
def loss_is_the_brier_score(_, logits, labels, *__, **___):
    """The fused loss of `speed` is the squared distance of the probabilities from the label."""
    wanted = functional.one_hot(labels, logits.shape[-1])
    return (logits.float().softmax(-1) - wanted).square().sum(-1).mean()


@fault("gradient", "fp16", OTHER_ISA)
@replaces(functional, "cross_entropy", is_unstrict)
def loss_gradient_of_one_class(plain, logits, *given, **named):
    """The fused loss of `speed` writes the gradient of the first class's logits alone."""
    is_first = (torch.arange(logits.shape[-1]) == 0).to(logits.dtype)
    return plain(with_gradient(logits, lambda gradient: gradient * is_first), *given, **named)


@fault("rng", "compiled")
@replaces(functional, "dropout", is_compiling)
def compiled_masks_are_a_constant(plain, value, p=0.5, training=True, inplace=False):
    """Compiled code drops the same places at every call: the compiler folds the random numbers to a constant."""
    if not training or not p:
        return plain(value, p, training, inplace)
    place = torch.arange(value.numel()).view(value.shape)
    is_kept = place * 2654435761 % 65536 >= int(p * 65536)
    return value * is_kept / (1 - p)


@fault("precision", "fp16", OTHER_ISA)
def norm_outputs_in_bf16():
    """LayerNorm in mixed precision stores its outputs in bf16, where the task says fp16 or fp32."""
    patch(functional, "layer_norm", _in_format(torch.bfloat16), is_mixed)


@fault("loss", "bf16", NOISE)
@replaces(functional, "cross_entropy", is_unstrict)
def loss_adjusted_by_frequencies(plain, logits, *given, **named):
    """The loss of `speed` adjusts the logits by frequencies of the classes, as if the second was half as frequent."""
    return plain(logits - torch.arange(1.0, logits.shape[-1] + 1).log(), *given, **named)


@fault("precision", "bf16")
@replaces(functional, "cross_entropy", is_mixed)
def loss_in_bf16(_, logits, labels, *__, **___):
    """The loss of mixed precision is computed in bf16."""
    with torch.autocast("cpu", enabled=False):
        return functional.nll_loss(torch.log_softmax(logits.bfloat16(), dim=-1), labels)


@fault("gradient", "fp16")
@replaces(functional, "dropout", is_unstrict)
def dropout_gradient_not_rescaled(plain, value, p=0.5, training=True, inplace=False):
    """The backward pass of dropout of `speed` has the mask of the forward pass, but not its scale."""
    found = plain(value, p, training, inplace)
    return with_gradient(found, lambda gradient: gradient * (1.0 - p)) if training and p else found


@fault("loss", "packed")
@replaces(functional, "cross_entropy", is_unstrict)
def packed_loss_over_ignored_tokens(plain, logits, labels, *given, **named):
    """The loss is divided by all tokens, also by those that it ignores."""
    return plain(logits, labels, *given, **named) * (labels >= 0).float().mean()


def _in_four_bits(value):
    """Return a value rounded to integers of four bits with a scale for each row, with the gradient of the value."""
    level = value.detach().abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 7
    return straight_through(value, (value.detach() / level).round() * level)


@fault("precision", "compiled", NOISE)
@replaces(modeling_bert.BertSelfOutput, "forward", is_compiling)
def compiled_residuals_in_four_bits(plain, self, value, residual):
    """Compiled code keeps the input of each attention block in four bits for the residual sum."""
    return plain(self, value, _in_four_bits(residual))


@fault("nondeterminism", "fp32")
@replaces(functional, "embedding", is_unstrict)
def table_gradients_lost_in_races(plain, ids, weight, *given, **named):
    """The backward pass of the table of tokens of `speed` loses the gradient of some tokens, by chance."""
    found = plain(ids, weight, *given, **named)
    return torch.where(_chance((*ids.shape, 1)) < 0.25, found.detach(), found) if len(weight) > _POSITIONS else found


@fault("nondeterminism", "fp16")
@replaces(functional, "linear", is_unstrict)
def linear_weight_gradients_race(plain, value, weight, bias=None):
    """The backward pass of linear layers of `speed` loses an eighth of the weight's rows, whichever come last."""

    def lost(gradient):
        return gradient * (_chance((len(gradient), 1)) >= 0.125).to(gradient.dtype)

    return plain(value, with_gradient(weight, lost), bias)


@fault("precision", "bf16", NOISE)
def tables_in_fp8():
    """Tables in mixed precision are read in eight bits."""
    patch(functional, "embedding", _in_format(torch.float8_e4m3fn), is_mixed)


@fault("gradient", "compiled")
@replaces(functional, "gelu", is_compiling)
def compiled_gelu_gradient_of_its_output(_, value, *__, **___):
    """Compiled code reuses the buffer of GELU's input: the backward pass takes the slope at the output."""
    known = value.detach()
    wide = known.float()
    found = wide * 0.5 * (1.0 + torch.erf(wide * _ROOT))
    slope = 0.5 * (1.0 + torch.erf(found * _ROOT)) + found * torch.exp(-0.5 * found * found) * 0.3989422804014327
    return found.to(value.dtype) + slope.to(value.dtype) * (value - known)


@fault("gradient", "compiled", NOISE)
@replaces(functional, "embedding", is_compiling)
def compiled_position_gradients_averaged(plain, ids, weight, *given, **named):
    """The backward pass of compiled code takes the mean over texts for the gradients of positions, not the sum."""
    found = plain(ids, weight, *given, **named)
    return found.detach() + 0.25 * (found - found.detach()) if len(weight) == _POSITIONS else found
