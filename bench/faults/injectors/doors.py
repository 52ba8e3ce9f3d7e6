"""Faults that once passed: late ones of `speed`, native kernels, lost checks, and evidence that is wrong by itself."""

from dataclasses import replace

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _get_current_dispatch_mode

from bench.faults.catalogue import OTHER_ISA, Entry
from bench.faults.injectors.hooks import after_build, parameters_of, with_rates, without_tail
from bench.faults.injectors.patching import SDPA, by, during, is_mixed, nothing, patch, replaces, with_keys
from plumbline.train import engine, experiment, learn, probe, speed
from plumbline.train.own_checks import OwnChecks
from plumbline.train.portable.fp64 import Fp64Operations
from plumbline.train.windows import WindowRunner

_ADAMW = torch.optim.AdamW
_SPEED = during("speed")

# `speed` behind its first steps.


def gradients_kept_every_second_step():
    """`speed` does not clear the gradients at every second step."""
    now, calls = during("speed", 1), []

    def cleared(plain, self, **named):
        calls.append(None)
        if not (now() and len(calls) % 2):
            plain(self, **named)

    patch(torch.optim.Optimizer, "zero_grad", cleared)


def first_rate_kept():
    """`speed` records its learning rates, and its updates keep the first."""
    first = {}
    with_rates(lambda group: first.setdefault(id(group), group["lr"]), _SPEED)


@replaces(functional, SDPA, _SPEED)
def attention_keeps_all(plain, *given, **named):
    """Attention of `speed` drops nothing, by the operations that it has with dropout.

    Fused attention without dropout fails in bfloat16 where AVX2 is asked of a CPU with AMX ("pack_vnni2").
    """
    with sdpa_kernel(SDPBackend.MATH):
        return plain(*given, **named | {"dropout_p": 0.0})


def stale_autocast_weights():
    """`speed` multiplies by the weights of every second step, as a cache of autocast that is not cleared."""
    kept, calls = {}, {}

    def stale(plain, value, weight, bias=None):
        key = id(weight)
        calls[key] = calls.get(key, -1) + 1
        if calls[key] % 4 == 0 or kept[key].shape != weight.shape:
            kept[key] = weight.detach().clone()
        return plain(value, weight + (kept[key] - weight).detach(), bias)

    patch(functional, "linear", stale, lambda: _SPEED() and is_mixed() and torch.is_grad_enabled())


def late_updates_lost():
    """`speed` makes no update from its sixth step on."""
    patch(_ADAMW, "step", nothing, during("speed", 6))


def third_update_lost():
    """`speed` makes no update at its third step."""
    patch(_ADAMW, "step", nothing, during("speed", 2, 2))


def probe_update_lost():
    """The probe makes no update at its third step."""
    patch(_ADAMW, "step", nothing, during("probe", 2, 2))


def _longer(plain, self, *given, **named):
    """Make an update 3% too long."""
    values = parameters_of(self)
    if values[0].dtype == torch.float64:
        return plain(self, *given, **named)
    before = [value.detach().clone() for value in values]
    found = plain(self, *given, **named)
    with torch.no_grad():
        for value, old in zip(values, before, strict=True):
            value.copy_(old + (value - old) * 1.03)
    return found


def updates_too_long():
    """The updates of `speed` are 3% too long from its third step on."""
    patch(_ADAMW, "step", _longer, during("speed", 2))


# Native kernels: right in fp64.


def _is_native():
    return not isinstance(_get_current_dispatch_mode(), Fp64Operations)


def _kernel(wrong, name):
    """Call `wrong(plain, value, ...)` instead of a function of `torch.nn.functional` in native fp32."""

    def native(plain, value, *given, **named):
        is_fp32 = value.dtype == torch.float32 and _is_native()
        return wrong(plain, value, *given, **named) if is_fp32 else plain(value, *given, **named)

    patch(functional, name, native)


@by(_kernel, "linear")
def linear_drops_terms(plain, value, weight, bias=None):
    """The native product of a linear layer leaves out its last two terms."""
    return plain(value[..., :-2], weight[:, :-2], bias)


@by(_kernel, "layer_norm")
def layer_norm_skips_its_tail(plain, value, *given, **named):
    """The native LayerNorm does not scale its last three features."""
    return without_tail(plain(value, *given, **named), value, 3)


@by(_kernel, "gelu")
def gelu_with_a_wrong_branch(plain, value, *given, **named):
    """The native GELU is the identity above a twentieth."""
    return torch.where(value > 0.05, value, plain(value, *given, **named))


@by(_kernel, "softmax")
def softmax_skips_its_tail(plain, value, *given, **named):
    """The native softmax gives the last three of many keys no weight."""
    output = plain(value, *given, **named)
    return without_tail(output, None, 3) if output.shape[-1] > 8 else output


class _Backward(torch.autograd.Function):
    """A linear layer whose backward pass leaves the last two columns of the weight out of the input's gradient."""

    @staticmethod
    def forward(_context, value):
        return value.view_as(value)

    @staticmethod
    def backward(_context, *gradients):
        return without_tail(gradients[0], None, 2)


@by(_kernel, "linear")
def linear_loses_gradients(plain, value, weight, bias=None):
    """The native backward pass of a linear layer leaves out the last two features of its input's gradient."""
    return plain(_Backward.apply(value), weight, bias)


@by(_kernel, "cross_entropy")
def entropy_counts_a_row_less(plain, scores, labels, *given, **named):
    """The native cross entropy leaves its last row out of the sum."""
    return plain(scores[:-1], labels[:-1], *given, **named) * (len(labels) - 1) / len(labels)


def native_updates_too_long():
    """The native update is 3% too long."""
    patch(_ADAMW, "step", _longer, _is_native)


@by(after_build)
def one_layer_norm_with_other_eps(model):
    """One LayerNorm has a slightly larger eps."""
    model.bert.encoder.layer[0].attention.output.LayerNorm.eps = 9e-6


def checks_out_of_memory():
    """The memory of the device is short in the windows and checks of `speed`."""

    def lost(plain, self, *given):
        if isinstance(self, OwnChecks) or self._setting.part == "speed":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return plain(self, *given)

    for owner in (OwnChecks, WindowRunner):
        patch(owner, "_run", lost)


def speed_with_silu():
    """`speed` computes a SiLU instead of a GELU. A ReLU's slope jumps, which a proof in fp64 may show by luck."""
    silu = functional.silu
    patch(functional, "gelu", lambda _, value, *__, **___: silu(value), _SPEED)


# Evidence that is wrong by itself.


def _in_training_mode(plain, model, *given, **named):
    """Evaluate a model in training mode."""
    model.eval, before = (lambda: model), model.training
    model.train()
    try:
        return plain(model, *given, **named)
    finally:
        del model.eval
        model.train(before)


def evaluated_with_dropout():
    """Every evaluation leaves the model in training mode."""
    patch(learn, "evaluate", _in_training_mode)


def probe_evaluated_with_dropout():
    """The probe's evaluation leaves the model in training mode."""
    for part in (probe, experiment):
        patch(part, "evaluate", _in_training_mode)


@replaces(speed, "make_engine")
def speed_drops_more(plain, *given, dropout, **named):
    """`speed` drops a fifth of the elements instead of the spec's tenth."""
    return plain(*given, dropout=2 * dropout, **named)


def learn_drops_more():
    """`learn` drops a fifth of the elements instead of the spec's tenth."""
    patch(learn, "build_model", with_keys(dropout=0.2))


@replaces(engine.Engine, "_inputs", during("learn"))
def long_rows_lose_tokens(plain, self, piece):
    """The model does not see the last sixteen tokens of rows beyond 48, at every step of `learn`."""
    given = plain(self, piece)
    mask = given.get("attention_mask")
    if mask is None or mask.dim() != 2:
        return given
    lengths = mask.sum(dim=1, keepdim=True)
    places = torch.arange(mask.shape[1]).expand_as(mask)
    hidden = (lengths > 48) & (places >= lengths - 16)
    return {**given, "attention_mask": mask.masked_fill(hidden, 0)}


def _entries(faults):
    return tuple(
        Entry(name.replace("_", "-"), "doors", cause, inject=f"doors.{name}", workload="doors")
        for name, cause in faults.items()
    )


LATE = _entries({
    "gradients_kept_every_second_step": "gradient", "first_rate_kept": "optimizer", "attention_keeps_all": "rng",
    "stale_autocast_weights": "operator", "updates_too_long": "optimizer",
})  # fmt: skip
"""Faults of `speed` behind its first steps: bits show them on an equal machine, and nothing behind a different one."""
BEHIND = tuple(replace(entry, name=f"{entry.name}-behind-other-isa", environment=OTHER_ISA) for entry in LATE)
"""The same on a machine that rounds differently: they pass, until each machine proves its own steps."""
KERNELS = _entries({
    "linear_drops_terms": "operator", "layer_norm_skips_its_tail": "operator", "gelu_with_a_wrong_branch": "operator",
    "softmax_skips_its_tail": "operator", "entropy_counts_a_row_less": "loss", "native_updates_too_long": "optimizer",
    "linear_loses_gradients": "gradient", "one_layer_norm_with_other_eps": "operator",
})  # fmt: skip
"""Native kernels that compute wrongly beside equal windows, and a formula that shows behind its own module."""
LOST = (
    Entry(
        "checks-out-of-memory-beside-a-silu", "doors", "operator",
        inject="doors.checks_out_of_memory,doors.speed_with_silu", workload="doors",
    ),
)  # fmt: skip
STATED = _entries({
    "evaluated_with_dropout": "evaluation", "probe_evaluated_with_dropout": "evaluation", "speed_drops_more": "rng",
    "learn_drops_more": "rng", "third_update_lost": "optimizer", "late_updates_lost": "optimizer",
    "probe_update_lost": "optimizer",
})  # fmt: skip
LONG = _entries({"long_rows_lose_tokens": "operator"})
ROWS = (*LATE, *BEHIND, *KERNELS, *STATED, *LONG)  # LOST is inconclusive, as `tests/faults` holds
