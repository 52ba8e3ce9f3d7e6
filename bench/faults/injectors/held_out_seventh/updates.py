"""Seventh held-out set: faults of fused and foreach optimizers, loss scaling, accumulation and clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import adam

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train.engine import Engine

Tensors = list[torch.Tensor]
_CHUNK = 8192


def _fused(change: Callable[..., None]) -> None:
    """Call `change(plain, parameters, gradients, first, second, largest, counts, **named)` for the fused kernel."""
    wrap_while(lambda: True, torch, "_fused_adamw_", change)


def fused_decay_twice() -> None:
    """The fused AdamW decays twice."""
    _fused(lambda plain, *lists, **named: plain(*lists, **named | {"weight_decay": 2 * named["weight_decay"]}))


@torch.no_grad()
def _without_later_chunks(plain: Any, parameters: Tensors, *lists: Any, **named: Any) -> None:
    before = [value.reshape(-1)[_CHUNK:].clone() for value in parameters]
    plain(parameters, *lists, **named)
    for value, kept in zip(parameters, before, strict=True):
        value.view(-1)[_CHUNK:] = kept


def fused_later_chunks_not_updated() -> None:
    """The fused AdamW updates the first chunk of each tensor: 8192 elements."""
    _fused(_without_later_chunks)


def fused_correction_one_step_ahead() -> None:
    """The fused AdamW corrects the bias of its moments by the count of the next step."""

    def ahead(plain: Any, *lists: Any, **named: Any) -> None:
        torch._foreach_add_(lists[5], 1.0)
        plain(*lists, **named)
        torch._foreach_add_(lists[5], -1.0)

    _fused(ahead)


def fused_momentum_of_undecayed_lost() -> None:
    """The fused AdamW keeps no first moment for tensors without decay."""

    def lost(plain: Any, *lists: Any, **named: Any) -> None:
        if not named["weight_decay"]:
            torch._foreach_zero_(lists[2])
        plain(*lists, **named)

    _fused(lost)


def fused_decay_for_every_group() -> None:
    """The fused AdamW applies the first group's decay to all groups."""
    known = [0.0]

    def shared(plain: Any, *lists: Any, **named: Any) -> None:
        known[0] = named["weight_decay"] or known[0]
        plain(*lists, **named | {"weight_decay": known[0]})

    _fused(shared)


def _foreach(change: Callable[..., None]) -> None:
    """Call `change(plain, parameters, ..., **named)` for the update of many tensors at once."""
    wrap_while(lambda: True, adam, "_multi_tensor_adam", change)


def foreach_skips_the_last_tensor() -> None:
    """The update of many tensors at once leaves out the last one of each list."""

    def skipped(plain: Any, *lists: Any, **named: Any) -> None:
        plain(*[values[:-1] for values in lists], **named)

    _foreach(skipped)


def foreach_eps_below_the_format() -> None:
    """The update of many tensors at once raises eps to the least normal number of fp16."""
    _foreach(lambda plain, *lists, **named: plain(*lists, **named | {"eps": 2.0**-14}))


def foreach_beta_in_bf16() -> None:
    """The update of many tensors at once reads its first beta in bf16: 0.8984."""
    _foreach(lambda plain, *lists, **named: plain(*lists, **named | {"beta1": 0.8984375}))


def scaler_leaves_vectors_scaled() -> None:
    """Loss scaling divides the gradients of matrices only."""

    def wrap(unscale: Any) -> Any:
        def unscaled(self: Any, optimizer: Any) -> None:
            scale = self.get_scale()
            unscale(self, optimizer)
            for group in optimizer.param_groups:
                for value in group["params"]:
                    if value.grad is not None and value.dim() < 2:
                        value.grad.mul_(scale)

        return unscaled

    wrap_method(torch.amp.GradScaler, "unscale_", wrap)


def scaler_skips_every_third_update() -> None:
    """Loss scaling takes every third step for an overflow, and skips its update."""
    count = [0]

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *given: Any, **named: Any) -> Any:
            count[0] += 1
            return None if count[0] % 3 == 0 else step(self, *given, **named)

        return stepped

    wrap_method(torch.amp.GradScaler, "_maybe_opt_step", wrap)


def scaler_halves_the_second_loss() -> None:
    """Loss scaling applies half of its factor to the second micro-batch of each step of `speed`."""
    acts, count = during("speed"), [0]

    def wrap(scale: Any) -> Any:
        def scaled(self: Any, loss: Any) -> Any:
            count[0] += 1
            return scale(self, loss) * (0.5 if acts() and count[0] % 2 == 0 else 1.0)

        return scaled

    wrap_method(torch.amp.GradScaler, "scale", wrap)


def first_micro_batch_cleared() -> None:
    """`speed` clears the gradients before the last micro-batch."""
    count = [0]

    def cleared(plain: Any, self: Engine, *given: Any) -> None:
        count[0] += 1
        if count[0] % self.spec.optimizer.accumulation_steps == 0:
            self.optimizer.zero_grad(set_to_none=True)
        plain(self, *given)

    wrap_while(during("speed"), Engine, "_backward", cleared)


def micro_batches_count_alike() -> None:
    """`speed` weighs its micro-batches alike, whatever their number of hidden tokens."""

    def alike(plain: Any, self: Engine, loss: Any, _share: float) -> None:
        plain(self, loss, 1.0 / self.spec.optimizer.accumulation_steps)

    wrap_while(during("speed"), Engine, "_backward", alike)


def clipped_by_the_norm_of_matrices() -> None:
    """`speed` clips by a norm without vectors, and clips matrices only."""

    def matrices(plain: Any, parameters: Any, *given: Any, **named: Any) -> Any:
        return plain([value for value in parameters if value.dim() > 1], *given, **named)

    wrap_while(during("speed"), torch.nn.utils, "clip_grad_norm_", matrices)
