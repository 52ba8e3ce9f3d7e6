"""Thirteenth held-out set: harmless differences at production settings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import is_unstrict, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import fingerprint
from plumbline.train.engine import Engine

Tensor = torch.Tensor


def _release(**versions: str) -> None:
    """Record a different version of some packages."""
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | versions)


def softmax_of_a_torch_release_in_base_two() -> None:
    """A release of torch has a different kernel of the softmax for `speed`, by powers of two."""
    _release(torch="2.13.1")

    def softmax(_: Any, value: Tensor, dim: int = -1, **__: Any) -> Any:
        wide = value.float()
        powers = ((wide - wide.amax(dim, keepdim=True).detach()) * math.log2(math.e)).exp2()
        return powers / powers.sum(dim, keepdim=True)

    wrap_while(is_unstrict, nn.functional, "softmax", softmax)


def tanh_of_a_torch_release_by_exponentials() -> None:
    """A release of torch has a different kernel of the hyperbolic tangent for `speed`, by exponentials."""
    _release(torch="2.13.1")

    def tanh(_: Any, value: Tensor) -> Any:
        found = (2.0 * value.float()).expm1()
        return (found / (found + 2.0)).to(value.dtype)

    wrap_while(is_unstrict, torch, "tanh", tanh)


def squares_of_a_torch_release_by_halves() -> None:
    """A release of torch has a different kernel of LayerNorm for `speed`, which adds mean and variance of blocks."""
    _release(torch="2.13.1")

    def norm(_: Any, value: Tensor, *given: Any) -> Any:
        _, weight, bias, eps = given
        blocks = value.float().unflatten(-1, (-1, 8))
        means = blocks.mean(-1)
        mean = means.mean(-1, keepdim=True)
        within = (blocks - means[..., None]).square().mean((-2, -1))[..., None]
        variance = within + (means - mean).square().mean(-1, keepdim=True)
        return (value.float() - mean) * (variance + eps).rsqrt() * weight + bias

    wrap_while(is_unstrict, nn.functional, "layer_norm", norm)


def batches_in_shared_memory() -> None:
    """The batches of a training lie in memory that processes share."""

    def wrap(split: Any) -> Any:
        def shared(self: Engine, batch: Any) -> Any:
            return split(self, {name: values.clone().share_memory_() for name, values in batch.items()})

        return shared

    wrap_method(Engine, "_micro_batches", wrap)
