"""Faults of a learning curve that is interrupted and resumed."""

import torch

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import RESTART, interrupt
from bench.faults.injectors.patching import by, during, patch
from plumbline.train import checkpoint, context
from plumbline.train.engine import Engine
from plumbline.train.models import dropout

_RISE = 8


def _after_filling(change):
    """Interrupt the curve, and call `change(engine)` once its checkpoint is restored."""
    interrupt()

    @torch.no_grad()
    def filled(plain, engine, *given):
        plain(engine, *given)
        change(engine)

    patch(checkpoint, "_fill", filled)


@fault("optimizer", "fp32", OTHER_ISA)
@by(_after_filling)
def resume_reads_roots_of_second_moments(resumed):
    """A resume reads second moments of a format that stores their roots, from a file that has the squares."""
    for state in resumed.optimizer.state.values():
        state["exp_avg_sq"].sqrt_()


@fault("optimizer", "bf16", OTHER_ISA)
@by(_after_filling)
def resume_decays_every_parameter(resumed):
    """A resume makes its groups anew, and decays normalisations and biases, too."""
    for group in resumed.optimizer.param_groups:
        group["weight_decay"] = resumed.spec.optimizer.weight_decay


@fault("schedule", "fp16", NOISE)
@by(_after_filling)
def resume_takes_micro_batches_for_steps(resumed):
    """A resume takes the micro-batches that were read for steps of its schedule, twice as many."""
    schedule = resumed.schedule
    schedule.lr_lambdas = [lambda step, plan=plan: plan(2 * step) for plan in schedule.lr_lambdas]
    for group, factor in zip(resumed.optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["lr"] = group["initial_lr"] * factor(schedule.last_epoch)


@fault("optimizer", "bf16", OTHER_ISA)
@by(_after_filling)
def resume_takes_the_betas_of_its_own_configuration(resumed):
    """A resume builds its optimizer with a second beta of 0.99, which is not what the checkpoint was trained with."""
    for group in resumed.optimizer.param_groups:
        group["betas"] = (group["betas"][0], 0.99)


@fault("data.order", "fp16")
def resume_reads_its_epoch_from_the_start():
    """A resume does not skip the batches that were read, and reads the first ones again."""
    is_resumed = interrupt()

    def again(plain, self, *, first, **rest):
        return plain(self, first=0 if is_resumed() and first == RESTART else first, **rest)

    patch(context.Context, "batches", again)


@fault("gradient", "eager")
def resume_leaves_its_tables_frozen():
    """A resume gives no gradient to the tables, which an earlier part of the recipe had frozen."""
    known = []
    _after_filling(known.append)

    def frozen(plain, self):
        for name, value in self.bare.named_parameters() if self in known else ():
            if ".embeddings." in name and "LayerNorm" not in name and value.grad is not None:
                value.grad.zero_()
        plain(self)

    patch(Engine, "_update", frozen, during("learn"))


@fault("rng", "fp16")
def resume_starts_its_masks_again():
    """A resumed curve drops the elements of its first steps again."""
    is_resumed = interrupt()

    def restarted(plain, self, step):
        plain(self, step - RESTART if is_resumed() and step >= RESTART else step)

    patch(dropout.DropoutClock, "starts", restarted)


@fault("schedule", "eager", NOISE)
@by(_after_filling)
def resume_warms_up_again(resumed):
    """A resume raises the learning rate from an eighth again."""
    planned = list(resumed.schedule.lr_lambdas)
    resumed.schedule.lr_lambdas = [
        lambda step, plan=plan: plan(step) * min(1.0, (step - RESTART + 1) / _RISE) for plan in planned
    ]
    for group in resumed.optimizer.param_groups:
        group["lr"] /= _RISE
