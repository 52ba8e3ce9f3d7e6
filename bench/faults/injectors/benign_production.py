"""Harmless changes of trainings at production settings."""

import contextlib
import math

import torch
from torch.nn import functional

from bench.faults.catalogue import NOISE, OTHER_ISA, PLAIN, Entry, control
from bench.faults.injectors.benign import new_torch
from bench.faults.injectors.hooks import interrupt
from bench.faults.injectors.patching import is_mixed, is_unstrict, replaces
from plumbline.train import engine
from plumbline.train.engine import Engine


@control("compiled", NOISE)
def pools_of_two_threads():
    """Torch computes with two threads."""
    torch.set_num_threads(2)


@control("fp16")
def three_threads():
    """Torch computes with three threads."""
    torch.set_num_threads(3)


@control("bf16", OTHER_ISA)
@new_torch
@replaces(functional, "linear", is_mixed)
def bias_of_a_release_added_apart(plain, value, weight, bias=None):
    """A release of torch adds the bias of linear layers of mixed precision after the product is rounded."""
    found = plain(value, weight)
    return found if bias is None else found + bias.to(found.dtype)


@control("bf16", OTHER_ISA)
@new_torch
@replaces(functional, "layer_norm", is_mixed)
def norm_of_a_release_by_its_formula(plain, value, *rest, **named):
    """A release of torch computes LayerNorm of mixed precision by its formula, in fp32."""
    if named or len(rest) != 4 or rest[1] is None:
        return plain(value, *rest, **named)
    _, weight, bias, eps = rest
    centred = value.float() - value.float().mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias


@control("fp32")
@new_torch
@replaces(torch, "_fused_adamw_")
def fused_adamw_of_a_release_in_fp64(plain, parameters, gradients, first, second, *rest, **named):
    """A release of torch computes the fused AdamW in fp64, and rounds once."""
    lists = [[value.detach().double() for value in values] for values in (parameters, gradients, first, second)]
    plain(*lists, *rest, **named)
    for values, found in zip((parameters, first, second), (lists[0], lists[2], lists[3]), strict=True):
        for value, exact in zip(values, found, strict=True):
            value.data.copy_(exact)


@control("eager")
@new_torch
@replaces(functional, "softmax", is_unstrict)
def softmax_of_a_torch_release_in_base_two(_, value, dim=-1, **__):
    """A release of torch has a different kernel of the softmax for `speed`, by powers of two."""
    wide = value if value.dtype == torch.float64 else value.float()
    powers = ((wide - wide.amax(dim, keepdim=True).detach()) * math.log2(math.e)).exp2()
    return powers / powers.sum(dim, keepdim=True)


@control("fp32", OTHER_ISA)
@new_torch
@replaces(functional, "gelu", is_unstrict)
def gelu_of_a_release_in_fp64(plain, value, **named):
    """A release computes GELU of `speed` in fp64."""
    return plain(value.double(), **named).to(value.dtype)


@control("fp32")
def curve_interrupted_and_resumed():
    """The learning curve is interrupted at its checkpoint, and resumed."""
    interrupt()


@control("packed")
@replaces(Engine, "_micro_batches")
def micro_batches_copied(plain, self, batch):
    """A loader copies each micro-batch before the model reads it."""
    for piece, share in plain(self, batch):
        yield {name: values.clone() for name, values in piece.items()}, share


@control("fp16")
@new_torch
@replaces(functional, "cross_entropy", is_unstrict)
def loss_of_a_torch_release_by_log_sum_exp(_, logits, labels, *__, **___):
    """A release of torch has a different kernel of the loss for `speed`, which never makes probabilities."""
    wide = logits.float()
    return (wide.logsumexp(-1) - wide.gather(-1, labels[:, None])[:, 0]).mean()


@control("bf16")
@replaces(engine, "autocast")
@contextlib.contextmanager
def casts_not_cached(plain, *given):
    """Autocast casts each weight again wherever it is used."""
    with plain(*given):
        before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(before)


@control("fp16")
def tokenizer_stores_a_truncation(content, _read, _seed):
    """The tokenizer's file stores a truncation that is longer than the task's."""
    content.tokenizer["truncation"] = {
        "direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip


def _machine(name, workload, about, setting="", **environment):
    return Entry(
        name, "benign_production", "", workload=workload, environment=environment, setting=setting, about=about
    )


_OTHER_ISA = "Kernels of another instruction set, and harmless variables."
_NO_CACHE = "The compiler reads no code of earlier runs, beside harmless variables."
ROWS = (
    _machine("fp16-for-other-isa", "fp16", _OTHER_ISA, **OTHER_ISA, **NOISE),
    _machine("fp32-without-vector-isa", "fp32", "Kernels without vector instructions.", **PLAIN),
    _machine("bf16-by-onednn-for-avx2", "bf16", "oneDNN uses kernels for AVX2.", ONEDNN_MAX_CPU_ISA="AVX2"),
    _machine("compiled-without-a-cache", "compiled", _NO_CACHE, TORCHINDUCTOR_FX_GRAPH_CACHE="0", **NOISE),
    _machine("eager-for-other-isa", "eager", _OTHER_ISA, **OTHER_ISA, **NOISE),
    _machine("fp32-of-two-processes", "fp32", "Two processes share each batch.", "two processes"),
)
