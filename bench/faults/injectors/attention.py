"""Faults of attention's kernels in `speed`, at production settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import Tensor, compiled, is_unstrict, wrap_while
from plumbline.train import batches

_REACHED = 16


def _sdpa(change: Callable[..., Tensor], acts: Callable[[], bool] = lambda: True) -> None:
    """Call `change(plain, q, k, v, **named)` instead of the fused kernel."""
    wrap_while(acts, nn.functional, "scaled_dot_product_attention", change)


@fault("operator", "fp32", OTHER_ISA)
def sdpa_values_of_the_row_before() -> None:
    """The fused kernel reads the values of the last row of a batch from the row before it."""
    _sdpa(lambda plain, q, k, v, **named: plain(q, k, torch.cat((v[:-1], v[-2:-1])), **named))


@fault("rng", "bf16")
def sdpa_without_dropout() -> None:
    """The fused kernel takes a probability of dropout and drops nothing."""
    _sdpa(lambda plain, q, k, v, **named: plain(q, k, v, **named | {"dropout_p": 0.0}))


@fault("rng", "eager")
def eager_masks_shared_by_heads() -> None:
    """All heads of eager attention drop the same elements."""

    def shared(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        if value.dim() != 4:
            return plain(value, *given, **named)
        return value * plain(torch.ones_like(value[:, :1]), *given, **named)

    wrap_while(is_unstrict, nn.functional, "dropout", shared)


@fault("gradient", "compiled", NOISE)
def compiled_late_values_without_gradient() -> None:
    """The backward pass of compiled attention does not reach values behind the sixteenth."""

    def cut(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        reached = torch.cat((value[..., :_REACHED, :], value[..., _REACHED:, :].detach()), -2)
        return plain(query, key, reached, **named)

    compiled("scaled_dot_product_attention", cut)


@fault("operator", "fp16")
def sdpa_dropout_not_rescaled() -> None:
    """The fused kernel drops elements and does not rescale those that it keeps."""

    def smaller(plain: Any, q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0, **named: Any) -> Any:
        return plain(q, k, v, dropout_p=dropout_p, **named) * (1 - dropout_p)

    _sdpa(smaller)


@fault("operator", "packed")
def packed_positions_start_at_one() -> None:
    """Positions of a packed text start at one."""

    def later(self: batches.Packing) -> Tensor:
        length = self.source.shape[1]
        return (self.source % length + 1).clamp(max=length - 1)

    batches.Packing.positions = property(later)  # type: ignore[assignment, method-assign]


@fault("rng", "bf16")
def sdpa_masks_repeat() -> None:
    """The fused kernel starts its random numbers anew at each call, as in a captured graph."""

    def repeated(plain: Any, *given: Any, **named: Any) -> Any:
        if not named.get("dropout_p"):
            return plain(*given, **named)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return plain(*given, **named)

    _sdpa(repeated)


def _speed_sdpa(change: Any) -> None:
    """Call `change(plain, query, key, value, **named)` for fused attention of `speed`."""
    wrap_while(is_unstrict, nn.functional, "scaled_dot_product_attention", change)


@fault("nondeterminism", "bf16")
def sdpa_reads_uninitialised_memory() -> None:
    """Fused attention adds memory that was never written to its output."""
    random = torch.Generator()

    def unwritten(plain: Any, *given: Any, **named: Any) -> Any:
        found = plain(*given, **named)
        random.seed()
        return found + (0.05 * torch.randn(found.shape, generator=random)).to(found.dtype)

    _speed_sdpa(unwritten)
