"""Tenth held-out set: harmless differences at production settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import is_unstrict, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import engine, fingerprint
from plumbline.train.engine import Engine

Tensor = torch.Tensor


def _release(**versions: str) -> None:
    """Record a different version of some packages."""
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | versions)


def norm_of_a_torch_release_in_two_passes() -> None:
    """A release of torch has a different kernel of LayerNorm for `speed`, which computes in two passes."""
    _release(torch="2.13.1")

    def norm(_: Any, value: Tensor, *given: Any) -> Any:
        _shape, weight, bias, eps = given
        centred = value - value.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias

    wrap_while(is_unstrict, nn.functional, "layer_norm", norm)


def attention_of_a_transformers_release() -> None:
    """A release of transformers scales queries in eager attention, instead of scores."""
    _release(transformers="5.23.1")

    def attend(_: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
        scores = torch.matmul(query * named["scaling"], key.transpose(2, 3))
        weights = nn.functional.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = nn.functional.dropout(weights, p=named["dropout"], training=module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    wrap_while(lambda: True, modeling_bert, "eager_attention_forward", attend)


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


def parameters_in_a_flat_buffer() -> None:
    """The parameters of `speed` are views of one buffer."""

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any, **named: Any) -> None:
            build(self, *given, **named)
            if self.part == "speed":
                flat, first = torch.cat([value.data.reshape(-1) for value in self.bare.parameters()]), 0
                for value in self.bare.parameters():
                    value.data = flat[first : first + value.numel()].view_as(value)
                    first += value.numel()

        return built

    wrap_method(Engine, "__init__", wrap)


def three_threads() -> None:
    """Torch computes with three threads."""
    torch.set_num_threads(3)
