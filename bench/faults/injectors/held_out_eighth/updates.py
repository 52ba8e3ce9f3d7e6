"""Eighth held-out set: faults of optimizer kernels, loss scaling, accumulation, clipping and rates in `speed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import adam

from bench.faults.injectors.held_out_seventh.places import during, is_mixed, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH
from plumbline.train import speed
from plumbline.train.engine import Engine

Tensors = list[torch.Tensor]


def _fused(change: Callable[..., None]) -> None:
    """Call `change(plain, parameters, gradients, first, second, largest, counts, **named)` for the fused kernel."""
    wrap_while(lambda: True, torch, "_fused_adamw_", change)


def _foreach(change: Callable[..., None]) -> None:
    """Call `change(plain, parameters, ..., **named)` for the update of many tensors at once."""
    wrap_while(lambda: True, adam, "_multi_tensor_adam", change)


def fused_eps_of_an_older_default() -> None:
    """The fused AdamW has the eps of an older library, 1e-6."""
    _fused(lambda plain, *lists, **named: plain(*lists, **named | {"eps": 1e-6}))


def fused_second_beta_of_language_models() -> None:
    """The fused AdamW has a second beta of 0.95."""
    _fused(lambda plain, *lists, **named: plain(*lists, **named | {"beta2": 0.95}))


def fused_decay_as_a_penalty() -> None:
    """The fused AdamW is the kernel of Adam: its decay is a part of the gradient."""
    _fused(lambda _, *lists, **named: torch._fused_adam_(*lists, **named))


def fused_moments_not_corrected() -> None:
    """The fused AdamW does not correct the bias of its moments."""

    def plainly(plain: Any, *lists: Any, **named: Any) -> None:
        plain(*lists[:5], [torch.full_like(count, 1e6) for count in lists[5]], **named)

    _fused(plainly)


def fused_vectors_not_updated() -> None:
    """The fused AdamW leaves out tensors of fewer than two dimensions."""

    def matrices(plain: Any, parameters: Tensors, *lists: Any, **named: Any) -> None:
        kept = [place for place, value in enumerate(parameters) if value.dim() > 1]
        if kept:
            plain(*([values[place] for place in kept] if values else [] for values in (parameters, *lists)), **named)

    _fused(matrices)


def foreach_counts_every_tensor() -> None:
    """The update of many tensors at once has one count for all, which each tensor advances."""

    def shared(plain: Any, *lists: Any, **named: Any) -> None:
        plain(*lists, **named)
        torch._foreach_add_(lists[5], float(len(lists[5]) - 1))

    _foreach(shared)


def foreach_without_decay() -> None:
    """The update of many tensors at once does not decay."""
    _foreach(lambda plain, *lists, **named: plain(*lists, **named | {"weight_decay": 0.0}))


def foreach_forgets_new_momentum() -> None:
    """The update of many tensors at once does not store its first moments at every second step."""

    def kept(plain: Any, *lists: Any, **named: Any) -> None:
        is_even = int(lists[5][0]) % 2 == 0
        before = [value.clone() for value in lists[2]]
        plain(*lists, **named)
        if not is_even:
            torch._foreach_copy_(lists[2], before)

    _foreach(kept)


def clipped_before_unscaling() -> None:
    """`speed` clips its gradients before it divides them by the loss scale."""

    def scaled(plain: Any, parameters: Any, *given: Any, **named: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        if not gradients:
            return plain(parameters, *given, **named)
        torch._foreach_mul_(gradients, 65536.0)
        found = plain(parameters, *given, **named)
        torch._foreach_mul_(gradients, 1 / 65536.0)
        return found

    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", scaled)


def clipped_to_the_default_norm() -> None:
    """`speed` clips to a norm of 1, a trainer's default."""
    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", lambda plain, parameters, *_, **__: plain(parameters, 1.0))


def clear_every_second_step(acts: Callable[[], bool]) -> None:
    """Clear gradients only before updates of an even number while `acts()`."""

    def wrap(clear: Any) -> Any:
        def cleared(self: Any, set_to_none: bool = True) -> None:
            done = int(next(iter(self.state.values()))["step"]) if self.state else 0
            if not acts() or done % 2 == 0:
                clear(self, set_to_none)

        return cleared

    wrap_method(torch.optim.Optimizer, "zero_grad", wrap)


def gradients_cleared_every_second_step() -> None:
    """`speed` clears its gradients at every second step, as if it accumulated over two."""
    clear_every_second_step(during("speed"))


def first_micro_batch_weighs_thrice() -> None:
    """`speed` weighs the first micro-batch three times as much as the second."""
    count = [0]

    def weighed(plain: Any, self: Engine, loss: Any, share: float) -> None:
        count[0] += 1
        plain(self, loss, share * (1.5 if count[0] % 2 else 0.5))

    wrap_while(during("speed"), Engine, "_backward", weighed)


def loss_divided_by_items_of_the_batch() -> None:
    """The loss of a micro-batch in mixed precision is divided by the items of the whole batch."""

    def smaller(plain: Any, logits: Any, labels: Any, *given: Any, **named: Any) -> Any:
        return plain(logits, labels, *given, **named) * (len(labels) / BATCH)

    acts = during("speed")
    wrap_while(lambda: is_mixed() and acts(), nn.functional, "cross_entropy", smaller)


def speed_schedule_steps_per_micro_batch() -> None:
    """`speed` advances its schedule once for each micro-batch."""
    wrap_while(during("speed"), Engine, "advance", lambda plain, self: (plain(self), plain(self)))


def speed_rate_scaled_by_the_batch() -> None:
    """`speed` multiplies its learning rate by the root of two, for a batch of two micro-batches."""

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any) -> Engine:
            engine: Engine = build(self, *given)
            engine.schedule.base_lrs = [rate * 2**0.5 for rate in engine.schedule.base_lrs]
            for group in engine.optimizer.param_groups:
                group["lr"] *= 2**0.5
            return engine

        return built

    wrap_method(speed.SpeedRun, "_engine", wrap)
