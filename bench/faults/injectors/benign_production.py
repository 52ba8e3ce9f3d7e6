"""Harmless changes of trainings at production settings."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bench.faults.catalogue import NOISE, OTHER_ISA, PLAIN, Entry, control
from bench.faults.injectors.benign import new_release
from bench.faults.injectors.hooks import Tensor, interrupt, is_mixed, is_unstrict, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import Content
from plumbline.train import engine
from plumbline.train.engine import Engine


@control("compiled", NOISE)
def pools_of_two_threads() -> None:
    """Torch computes with two threads."""
    torch.set_num_threads(2)


@control("fp16")
def three_threads() -> None:
    """Torch computes with three threads."""
    torch.set_num_threads(3)


@control("bf16", OTHER_ISA)
def bias_of_a_release_added_apart() -> None:
    """A release of torch adds the bias of linear layers of mixed precision after the product is rounded."""
    new_release()

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        found = plain(value, weight)
        return found if bias is None else found + bias.to(found.dtype)

    wrap_while(is_mixed, nn.functional, "linear", linear)


@control("bf16", OTHER_ISA)
def norm_of_a_release_by_its_formula() -> None:
    """A release of torch computes LayerNorm of mixed precision by its formula, in fp32."""
    new_release()

    def norm(plain: Any, value: Tensor, *rest: Any, **named: Any) -> Any:
        if named or len(rest) != 4 or rest[1] is None:
            return plain(value, *rest, **named)
        _, weight, bias, eps = rest
        centred = value.float() - value.float().mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias

    wrap_while(is_mixed, nn.functional, "layer_norm", norm)


@control("fp32")
def fused_adamw_of_a_release_in_fp64() -> None:
    """A release of torch computes the fused AdamW in fp64, and rounds once."""
    new_release()

    def wrap(plain: Any) -> Any:
        def double(parameters: Any, gradients: Any, first: Any, second: Any, *rest: Any, **named: Any) -> None:
            lists = [[value.detach().double() for value in values] for values in (parameters, gradients, first, second)]
            plain(*lists, *rest, **named)
            for values, found in zip((parameters, first, second), (lists[0], lists[2], lists[3]), strict=True):
                for value, exact in zip(values, found, strict=True):
                    value.data.copy_(exact)

        return double

    wrap_method(torch, "_fused_adamw_", wrap)


@control("eager")
def softmax_of_a_torch_release_in_base_two() -> None:
    """A release of torch has a different kernel of the softmax for `speed`, by powers of two."""
    new_release()

    def softmax(_: Any, value: Tensor, dim: int = -1, **__: Any) -> Any:
        wide = value if value.dtype == torch.float64 else value.float()
        powers = ((wide - wide.amax(dim, keepdim=True).detach()) * math.log2(math.e)).exp2()
        return powers / powers.sum(dim, keepdim=True)

    wrap_while(is_unstrict, nn.functional, "softmax", softmax)


@control("fp32", OTHER_ISA)
def gelu_of_a_release_in_fp64() -> None:
    """A release computes GELU of `speed` in fp64."""
    new_release()
    wrap_while(
        is_unstrict, nn.functional, "gelu",
        lambda plain, value, **named: plain(value.double(), **named).to(value.dtype),
    )  # fmt: skip


@control("fp32")
def curve_interrupted_and_resumed() -> None:
    """The learning curve is interrupted at its checkpoint, and resumed."""
    interrupt()


@control("packed")
def micro_batches_copied() -> None:
    """A loader copies each micro-batch before the model reads it."""

    def wrap(split: Any) -> Any:
        def copied(self: Any, batch: Any) -> Any:
            for piece, share in split(self, batch):
                yield {name: values.clone() for name, values in piece.items()}, share

        return copied

    wrap_method(Engine, "_micro_batches", wrap)


@control("fp16")
def loss_of_a_torch_release_by_log_sum_exp() -> None:
    """A release of torch has a different kernel of the loss for `speed`, which never makes probabilities."""
    new_release()

    def loss(_: Any, logits: Tensor, labels: Tensor, *__: Any, **___: Any) -> Any:
        wide = logits.float()
        return (wide.logsumexp(-1) - wide.gather(-1, labels[:, None])[:, 0]).mean()

    wrap_while(is_unstrict, nn.functional, "cross_entropy", loss)


@control("bf16")
def casts_not_cached() -> None:
    """Autocast casts each weight again wherever it is used."""

    def wrap(plain: Any) -> Any:
        @contextlib.contextmanager
        def uncached(*given: Any) -> Iterator[None]:
            with plain(*given):
                before = torch.is_autocast_cache_enabled()
                torch.set_autocast_cache_enabled(False)
                try:
                    yield
                finally:
                    torch.set_autocast_cache_enabled(before)

        return uncached

    wrap_method(engine, "autocast", wrap)


@control("fp16")
def tokenizer_stores_a_truncation(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer's file stores a truncation that is longer than the task's."""
    content.tokenizer["truncation"] = {
        "direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip


ROWS = (
    Entry(
        "fp16-for-other-isa", "benign_production", "", workload="fp16", environment={**OTHER_ISA, **NOISE},
        about="Kernels of another instruction set, and harmless variables.",
    ),
    Entry(
        "fp32-without-vector-isa", "benign_production", "", workload="fp32", environment=PLAIN,
        about="Kernels without vector instructions.",
    ),
    Entry(
        "bf16-by-onednn-for-avx2", "benign_production", "", workload="bf16",
        environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}, about="oneDNN uses kernels for AVX2.",
    ),
    Entry(
        "compiled-without-a-cache", "benign_production", "", workload="compiled",
        environment={"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", **NOISE},
        about="The compiler reads no code of earlier runs, beside harmless variables.",
    ),
    Entry(
        "eager-for-other-isa", "benign_production", "", workload="eager", environment={**OTHER_ISA, **NOISE},
        about="Kernels of another instruction set, and harmless variables.",
    ),
    Entry(
        "fp32-of-two-processes", "benign_production", "", workload="fp32", setting="two processes",
        about="Two processes share each batch.",
    ),
)  # fmt: skip
