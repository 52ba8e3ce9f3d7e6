"""Eleventh held-out set: harmless differences at production settings."""

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


def gelu_of_a_torch_release_by_erfc() -> None:
    """A release of torch has a different kernel of GELU for `speed`, by the complementary error function."""
    _release(torch="2.13.1")

    def gelu(_: Any, value: Tensor, *__: Any, **___: Any) -> Any:
        return 0.5 * value * torch.special.erfc(-value * 0.5**0.5)

    wrap_while(is_unstrict, nn.functional, "gelu", gelu)


def linear_of_a_torch_release_in_wider_sums() -> None:
    """A release of torch has a different kernel of linear layers for `speed`, which rounds sums of fp32 at the end."""
    _release(torch="2.13.1")

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return plain(value, weight, bias)
        short = torch.get_autocast_dtype("cpu")
        value, weight = value.to(short).float(), weight.to(short).float()
        with torch.autocast("cpu", enabled=False):
            return plain(value, weight, None if bias is None else bias.to(short).float()).to(short)

    wrap_while(is_unstrict, nn.functional, "linear", linear)


def steps_in_ranges_of_a_profiler() -> None:
    """Each forward pass is a range of a profiler."""

    def wrap(forward: Any) -> Any:
        def ranged(*given: Any) -> Any:
            with torch.profiler.record_function("forward"):
                return forward(*given)

        return ranged

    wrap_method(Engine, "_forward", wrap)


def four_threads() -> None:
    """Torch computes with four threads."""
    torch.set_num_threads(4)
