"""Faults of a learning curve that is interrupted and resumed."""

from __future__ import annotations

from typing import Any

import torch

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import RESTART, interrupt, wrap_while
from bench.faults.injectors.patching import during, wrap_method
from plumbline.train import checkpoint, context
from plumbline.train.engine import Engine
from plumbline.train.models import dropout

_RISE = 8


def _after_filling(change: Any) -> None:
    """Interrupt the curve, and call `change(engine)` once its checkpoint is restored."""
    interrupt()

    def wrap(fill: Any) -> Any:
        def filled(engine: Engine, *given: Any) -> None:
            fill(engine, *given)
            with torch.no_grad():
                change(engine)

        return filled

    wrap_method(checkpoint, "_fill", wrap)


@fault("optimizer", "fp32", OTHER_ISA)
def resume_reads_roots_of_second_moments() -> None:
    """A resume reads second moments of a format that stores their roots, from a file that has the squares."""

    def rooted(resumed: Engine) -> None:
        for state in resumed.optimizer.state.values():
            state["exp_avg_sq"].sqrt_()

    _after_filling(rooted)


@fault("optimizer", "bf16", OTHER_ISA)
def resume_decays_every_parameter() -> None:
    """A resume makes its groups anew, and decays normalisations and biases, too."""

    def decay(resumed: Engine) -> None:
        for group in resumed.optimizer.param_groups:
            group["weight_decay"] = resumed.spec.optimizer.weight_decay

    _after_filling(decay)


@fault("schedule", "fp16", NOISE)
def resume_takes_micro_batches_for_steps() -> None:
    """A resume takes the micro-batches that were read for steps of its schedule, twice as many."""

    def counted(resumed: Engine) -> None:
        schedule = resumed.schedule
        schedule.lr_lambdas = [lambda step, plan=plan: plan(2 * step) for plan in schedule.lr_lambdas]
        for group, factor in zip(resumed.optimizer.param_groups, schedule.lr_lambdas, strict=True):
            group["lr"] = group["initial_lr"] * factor(schedule.last_epoch)

    _after_filling(counted)


@fault("optimizer", "bf16", OTHER_ISA)
def resume_takes_the_betas_of_its_own_configuration() -> None:
    """A resume builds its optimizer with a second beta of 0.99, which is not what the checkpoint was trained with."""

    def configured(resumed: Engine) -> None:
        for group in resumed.optimizer.param_groups:
            group["betas"] = (group["betas"][0], 0.99)

    _after_filling(configured)


@fault("data.order", "fp16")
def resume_reads_its_epoch_from_the_start() -> None:
    """A resume does not skip the batches that were read, and reads the first ones again."""
    is_resumed = interrupt()

    def wrap(read: Any) -> Any:
        def again(self: Any, *, first: int, **rest: Any) -> Any:
            return read(self, first=0 if is_resumed() and first == RESTART else first, **rest)

        return again

    wrap_method(context.Context, "batches", wrap)


def _without_gradients(self: Engine, part: str, but: str = "-") -> None:
    """Clear the gradients of all parameters with `part` in their names."""
    for name, value in self.bare.named_parameters():
        if part in name and but not in name and value.grad is not None:
            value.grad.zero_()


@fault("gradient", "eager")
def resume_leaves_its_tables_frozen() -> None:
    """A resume gives no gradient to the tables, which an earlier part of the recipe had frozen."""
    known: list[Engine] = []
    _after_filling(known.append)

    def frozen(plain: Any, self: Engine) -> None:
        if self in known:
            _without_gradients(self, ".embeddings.", "LayerNorm")
        plain(self)

    wrap_while(during("learn"), Engine, "_update", frozen)


@fault("rng", "fp16")
def resume_starts_its_masks_again() -> None:
    """A resumed curve drops the elements of its first steps again."""
    is_resumed = interrupt()

    def wrap(starts: Any) -> Any:
        def restarted(self: Any, step: int) -> None:
            starts(self, step - RESTART if is_resumed() and step >= RESTART else step)

        return restarted

    wrap_method(dropout.DropoutClock, "starts", wrap)


@fault("schedule", "eager", NOISE)
def resume_warms_up_again() -> None:
    """A resume raises the learning rate from an eighth again."""

    def warmed(resumed: Engine) -> None:
        planned = list(resumed.schedule.lr_lambdas)
        resumed.schedule.lr_lambdas = [
            lambda step, plan=plan: plan(step) * min(1.0, (step - RESTART + 1) / _RISE) for plan in planned
        ]
        for group in resumed.optimizer.param_groups:
            group["lr"] /= _RISE

    _after_filling(warmed)
