"""Ninth held-out set: harmless differences at production settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_ninth.curve import interrupt
from bench.faults.injectors.held_out_seventh.places import is_mixed, is_unstrict, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train.engine import Engine

Tensor = torch.Tensor


def curve_interrupted_and_resumed() -> None:
    """The learning curve is interrupted at its checkpoint, and resumed."""
    interrupt()


def gelu_of_a_release_in_fp64() -> None:
    """A release computes GELU of `speed` in fp64."""
    wrap_while(
        is_unstrict, nn.functional, "gelu",
        lambda plain, value, **named: plain(value.double(), **named).to(value.dtype),
    )  # fmt: skip


def bias_of_a_release_added_apart() -> None:
    """A release adds the bias of linear layers of mixed precision after the product is rounded."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        found = plain(value, weight)
        return found if bias is None else found + bias.to(found.dtype)

    wrap_while(is_mixed, nn.functional, "linear", linear)


def losses_read_at_each_step() -> None:
    """A logger reads the loss of each micro-batch from the device."""
    read: list[float] = []

    def wrap(forward: Any) -> Any:
        def forwarded(self: Any, *given: Any) -> Any:
            loss = forward(self, *given)
            read.append(float(loss.detach()))
            return loss

        return forwarded

    wrap_method(Engine, "_forward", wrap)


def micro_batches_copied() -> None:
    """A loader copies each micro-batch before the model reads it."""

    def wrap(split: Any) -> Any:
        def copied(self: Any, batch: Any) -> Any:
            for piece, share in split(self, batch):
                yield {name: values.clone() for name, values in piece.items()}, share

        return copied

    wrap_method(Engine, "_micro_batches", wrap)
