"""Twelfth held-out set: harmless differences at production settings."""

from __future__ import annotations

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


def loss_of_a_torch_release_by_log_sum_exp() -> None:
    """A release of torch has a different kernel of the loss for `speed`, which never makes probabilities."""
    _release(torch="2.13.1")

    def loss(_: Any, logits: Tensor, labels: Tensor, *__: Any, **___: Any) -> Any:
        wide = logits.float()
        return (wide.logsumexp(-1) - wide.gather(-1, labels[:, None])[:, 0]).mean()

    wrap_while(is_unstrict, nn.functional, "cross_entropy", loss)


def products_of_a_torch_release_in_halves() -> None:
    """A release of torch has a different kernel of linear layers for `speed`, which adds two halves of each sum."""
    _release(torch="2.13.1")

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        half = weight.shape[1] // 2
        if torch.is_autocast_enabled("cpu"):
            return plain(value, weight, bias)
        return plain(value[..., :half], weight[:, :half], bias) + plain(value[..., half:], weight[:, half:])

    wrap_while(is_unstrict, nn.functional, "linear", linear)


def gradients_copied_as_they_arrive() -> None:
    """A watcher copies each gradient as soon as it is complete."""
    copies: dict[Any, Tensor] = {}

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any, **named: Any) -> None:
            build(self, *given, **named)
            for value in self.bare.parameters():
                value.register_post_accumulate_grad_hook(lambda own: copies.update({own: own.grad.clone()}))

        return built

    wrap_method(Engine, "__init__", wrap)


def pools_of_two_threads() -> None:
    """Torch computes with two threads."""
    torch.set_num_threads(2)
