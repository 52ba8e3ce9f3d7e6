"""Faults of the probe's operators, of their precision and of their kernels."""

import torch
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import after_build, own_update
from bench.faults.injectors.patching import by, last_step, patch, replaces, with_keys
from plumbline.train import engine

_LINEAR = functional.linear


@fault("operator")
def tanh_gelu():
    """GELU by its tanh approximation."""
    patch(functional, "gelu", with_keys(approximate="tanh"))


@fault("kernel")
@replaces(functional, "softmax")
def softmax_spelt_out(_, value, *__, **___):
    """The softmax as exponentials and their sum."""
    raised = (value - value.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


@fault("operator")
@by(after_build)
def pooler_without_tanh(model):
    """The pooler's tanh is missing."""
    model.bert.pooler.dense.register_forward_hook(lambda _m, _i, output: torch.atanh(output.clamp(-0.999, 0.999)))


def _in_bf16(plain, *values, **rest):
    """Compute a function of tensors in bf16 wherever they are in fp32."""
    if values[0].dtype != torch.float32:
        return plain(*values, **rest)
    return plain(*(value.bfloat16() for value in values), **rest).float()


@fault("precision")
def gelu_in_bf16():
    """GELU in bf16."""
    patch(functional, "gelu", _in_bf16)


@fault("precision", "mlm")
@replaces(functional, "cross_entropy")
def token_scores_in_bf16_for_the_loss(plain, scores, *given, **named):
    """The loss of masked language modelling reads the scores in bf16."""
    return plain(scores.bfloat16().float() if scores.dtype == torch.float32 else scores, *given, **named)


@fault("operator", "mlm")
@by(after_build)
def transform_not_normalised(model):
    """Masked language modelling skips the LayerNorm before the decoder."""
    model.cls.predictions.transform.LayerNorm.forward = lambda value: value * 1


def _autocast(_, _precision, device):
    return torch.autocast("cpu", dtype=torch.bfloat16)


@fault("precision")
def autocast_from_step_six():
    """From the seventh step on a library leaves autocast on."""
    patch(engine, "autocast", _autocast, lambda: last_step() >= 6)


@fault("operator")
@replaces(modeling_bert, "eager_attention_forward")
def a_head_lost_at_step_five(plain, *given, **named):
    """At the sixth step alone the second head returns zeros."""
    output, weights = plain(*given, **named)
    heads = torch.tensor([1.0, 0.0]).to(output)[None, None, :, None]
    return output * heads if last_step() == 5 else output, weights


@fault("operator")
@replaces(modeling_bert, "eager_attention_forward")
def mask_too_weak(plain, module, q, k, v, mask, **named):
    """Hidden positions are pushed down by five, not by the smallest number."""
    return plain(module, q, k, v, None if mask is None else mask.clamp(min=-5.0), **named)


@fault("kernel")
def gelu_in_two_terms():
    """GELU is the sum of half its input and half the input times the error function."""
    functional.gelu = lambda value, approximate="none": value * 0.5 + value * torch.erf(value * 0.5**0.5) * 0.5


@fault("precision")
def bf16_autocast():
    """Autocast to bf16 left on."""
    patch(engine, "autocast", _autocast)


@fault("precision")
def fp64_left_on():
    """The model stays in fp64 after an experiment."""
    after_build(lambda model: model.double())


@fault("operator")
def scaled_as_if_dropped():
    """Dropout drops nothing, and scales all the same."""
    functional.dropout = lambda value, p=0.5, training=True, inplace=False: value / 0.9 if training else value


class _Linear(torch.autograd.Function):
    """A linear layer whose backward pass sums in fp64."""

    @staticmethod
    def forward(context, x, w, b):
        context.save_for_backward(x, w)
        return _LINEAR(x, w, b)

    @staticmethod
    def backward(context, *gradients):
        x, w = context.saved_tensors
        back = gradients[0].double()
        flat = back.reshape(-1, back.shape[-1])
        weight = flat.t() @ x.double().reshape(-1, x.shape[-1])
        return (back @ w.double()).to(x.dtype), weight.to(w.dtype), flat.sum(0).to(w.dtype)


@fault("kernel")
def linear_backward_in_fp64():
    """The backward pass of linear layers summed in fp64."""
    functional.linear = lambda x, w, b=None: _LINEAR(x, w) if b is None else _Linear.apply(x, w, b)


@fault("kernel")
@by(own_update)
def update_by_reciprocals(group, value, first, second):
    """AdamW multiplies by reciprocals instead of dividing."""
    value.mul_(1 - group["lr"] * group["weight_decay"])
    value.sub_(first * (second.sqrt() + group["eps"]).reciprocal() * group["lr"])


@fault("precision")
@by(after_build)
def embeddings_added_in_bf16(model):
    """The three embeddings are added in bf16, the rest stays in fp32."""
    added = model.bert.embeddings.LayerNorm
    added.register_forward_pre_hook(lambda _module, inputs: _in_bf16(lambda value: value * 1, inputs[0]))


@fault("kernel")
@replaces(functional, "cross_entropy")
def entropy_by_its_formula(_, scores, labels, *__, **___):
    """Cross entropy as a log-sum-exp less the label's score."""
    return (scores.logsumexp(-1) - scores.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()


@fault("kernel")
@replaces(functional, "layer_norm")
def layer_norm_by_two_moments(_, value, _shape, weight=None, bias=None, eps=1e-5):
    """LayerNorm's variance is the mean square minus the squared mean."""
    mean = value.mean(-1, keepdim=True)
    variance = (value * value).mean(-1, keepdim=True) - mean * mean
    scaled = (value - mean) * torch.rsqrt(variance + eps)
    return scaled if weight is None else scaled * weight + bias
