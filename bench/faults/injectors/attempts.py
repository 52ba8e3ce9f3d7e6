"""Attempts at a wrong pass: small faults of one part of a training."""

import torch
from torch.nn import functional

from bench.faults.injectors.hooks import once_built
from bench.faults.injectors.patching import SDPA, by, during, nothing, of_output, patch, replaces, with_keys
from bench.faults.world import TRAIN_ROWS
from plumbline.train import evaluation, learn
from plumbline.train.engine import Engine
from plumbline.train.models import dropout

_CURVE, _SPEED = during("learn"), during("speed")


def _on_optimizer(part, change):
    """Change the parameter groups of a part's engine once it is built."""

    def made(engine):
        for group in engine.optimizer.param_groups if engine.part == part else ():
            group.update(change(group))

    once_built(made)


def learn_without_decay():
    """The curve has no weight decay."""
    _on_optimizer("learn", lambda _: {"weight_decay": 0.0})


def learn_with_other_beta2():
    """The curve's beta2 is 0.9991."""
    _on_optimizer("learn", lambda _: {"betas": (0.9, 0.9991)})


def learn_with_tanh_gelu():
    """The curve's GELU is the one by tanh."""
    patch(functional, "gelu", with_keys(approximate="tanh"), _CURVE)


def learn_with_softmax_in_bf16():
    """The curve's attention takes its softmax in bf16."""
    patch(functional, "softmax", lambda plain, value, dim: plain(value.bfloat16(), dim=dim).float(), _CURVE)


def learn_without_clipping():
    """The curve's gradients are not clipped."""
    patch(torch.nn.utils, "clip_grad_norm_", nothing, _CURVE)


def learn_with_frozen_masks():
    """The curve's dropout has the masks of one step."""
    dropout.DropoutClock.starts = nothing


def _fed(change):
    """Let the curve's evaluations read changed batches of the same rows."""

    def evaluated(plain, *given, **named):
        make = evaluation.make_loader
        evaluation.make_loader = lambda *rows, **keys: map(change, make(*rows, **keys))
        try:
            return plain(*given, **named)
        finally:
            evaluation.make_loader = make

    patch(learn, "evaluate", evaluated)


@by(_fed)
def learn_with_reversed_labels(batch):
    """Reverse four labels of the curve's evaluation, behind the rows of a window."""
    rows = batch["row_ids"] - TRAIN_ROWS
    return {**batch, "labels": torch.where((rows >= 16) & (rows < 20), 1 - batch["labels"], batch["labels"])}


@replaces(Engine, "_forward", during("learn", 5))
def learn_with_hidden_tokens(plain, self, piece, share):
    """The curve hides the tokens from the 24th on, from step 5 on."""
    mask = piece["attention_mask"].clone()
    mask[:, 24:] = 0
    return plain(self, {**piece, "attention_mask": mask}, share)


@replaces(functional, "cross_entropy", _CURVE)
def learn_with_class_weights(plain, *given, **named):
    """The curve's loss weighs its second class by 1.2."""
    return plain(*given, **named | {"weight": torch.tensor([1.0, 1.2])})


@by(once_built)
def learn_with_frozen_encoder(engine):
    """The curve trains its head and embeddings alone."""
    for name, value in engine.bare.named_parameters():
        if engine.part == "learn" and ".encoder." in name:
            value.requires_grad_(False)


def learn_evaluated_without_padding():
    """The curve's evaluation attends to padding."""
    _fed(lambda batch: {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])})


def learn_evaluated_in_bf16():
    """The curve is evaluated in bf16."""
    patch(learn, "evaluate", with_keys(precision="bf16"))


def speed_without_padding_mask():
    """The fused attention of speed ignores padding."""
    patch(functional, SDPA, with_keys(attn_mask=None), _SPEED)


def speed_without_decay():
    """Speed's optimizer has no weight decay."""
    _on_optimizer("speed", lambda _: {"weight_decay": 0.0})


def speed_with_halved_norm():
    """Speed's LayerNorm is halved."""
    patch(functional, "layer_norm", of_output(lambda output: output * 0.5), _SPEED)


def speed_with_relu():
    """Speed's GELU is a ReLU."""
    patch(functional, "gelu", lambda _, value, **__: torch.relu(value), _SPEED)


def speed_with_scaled_loss():
    """Speed's loss is 1% larger."""
    patch(functional, "cross_entropy", of_output(lambda loss: loss * 1.01), _SPEED)


@replaces(Engine, "_micro_batches", _SPEED)
def speed_with_half_of_the_rows(plain, self, batch):
    """Speed trains on every second row twice."""
    return plain(self, {name: values[::2].repeat_interleave(2, dim=0) for name, values in batch.items()})


def probe_with_late_smoothing():
    """The probe smooths its labels by 2e-5 from step 4 on."""
    patch(functional, "cross_entropy", with_keys(label_smoothing=2e-5), during("probe", 4))


@replaces(torch, "matmul", during("probe", 3))
def probe_with_late_scale(plain, left, right):
    """The probe's attention scores are 2e-6 larger from step 3 on."""
    found = plain(left, right)
    is_score = found.dim() == 4 and found.shape[-1] == found.shape[-2]
    return found * (1 + 2e-6) if is_score else found


@replaces(functional, "layer_norm", during("probe", 2))
def probe_with_other_eps(plain, *given):
    """The probe's LayerNorm has an eps of 1e-8 from step 2 on."""
    *others, eps = given
    return plain(*others, eps * 1.0e4)


@replaces(torch.nn.utils, "clip_grad_norm_", during("probe", 4))
def probe_with_larger_gradient(plain, parameters, *given):
    """One gradient of the probe is 1e-6 larger from step 4 on."""
    next(value for value in parameters if value.grad is not None).grad.mul_(1 + 1e-6)
    return plain(parameters, *given)


def probe_with_other_adam_eps():
    """The probe's Adam has an eps that is 1% larger."""
    _on_optimizer("probe", lambda group: {"eps": group["eps"] * 1.01})


def probe_decays_biases():
    """The probe decays biases and normalisations, too."""
    _on_optimizer("probe", lambda group: {"weight_decay": group["weight_decay"] or 1e-4})
