"""Sixth held-out set: faults of a learning curve's restart from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.faults.injectors.held_out_fifth.learning import _engine
from bench.faults.injectors.patching import replace_everywhere, wrap_method
from bench.faults.injectors.training import _clip
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches
from plumbline.train.checkpoint import load_checkpoint

_LEARN = ("learn",)
_EPOCH = TRAIN_ROWS // BATCH
"""Steps of an epoch."""


def _at_checkpoint(change: Callable[[Any, int], None]) -> None:
    """Change the run after each checkpoint, as a restart from it would; `change` gets engine and steps done."""

    def wrap(save: Any) -> Any:
        def saved(folder: Any, run: Any, progress: Any, *rest: Any) -> None:
            save(folder, run, progress, *rest)
            change(run, progress.step)

        return saved

    replace_everywhere("save_checkpoint", wrap, among=_LEARN)


def learn_resume_repeats_the_epoch() -> None:
    """A sampler without a state starts its epoch again after a restart from a checkpoint."""
    repeated = [0]

    def restart(_run: Any, done: int) -> None:
        repeated[0] += done % _EPOCH

    _at_checkpoint(restart)

    def wrap(get: Any) -> Any:
        return lambda self, positions: get(self, [place - repeated[0] * BATCH for place in positions])

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_clipping_lost_at_the_checkpoint() -> None:
    """A restart from a checkpoint builds the training loop without clipping."""
    restarted = [False]
    _at_checkpoint(lambda _run, _done: restarted.__setitem__(0, True))
    _clip(
        lambda clip: (
            lambda parameters, most, *args, **rest: clip(parameters, 1e9 if restarted[0] else most, *args, **rest)
        )
    )


def learn_decay_of_the_default_after_the_checkpoint() -> None:
    """A restart from a checkpoint builds the optimizer with torch's default weight decay of 0.01."""

    def change(run: Any, _done: int) -> None:
        for group in run.optimizer.param_groups:
            group["weight_decay"] = 0.01

    _at_checkpoint(change)


def learn_update_count_lost_at_the_checkpoint() -> None:
    """A checkpoint keeps the moments and loses the number of updates, so that the bias correction starts again."""

    def change(run: Any, _done: int) -> None:
        for state in run.optimizer.state.values():
            state["step"].zero_()

    _at_checkpoint(change)


def learn_warm_up_again_after_the_checkpoint() -> None:
    """A restart from a checkpoint warms up again over eight steps."""
    restarted = [-1]
    _at_checkpoint(lambda _run, done: restarted.__setitem__(0, done))

    def change(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            done = number - restarted[0]
            if restarted[0] >= 0 and done < 8:
                for group in self.optimizer.param_groups:
                    group["lr"] *= (done + 1) / 9
            return step(self, number, batch)

        return stepped

    _engine("step", change)


# A control: the same training, restarted exactly.


def learn_restarted_from_the_checkpoint() -> None:
    """The learning curve ends at its checkpoint and continues from it; the record says so."""

    def wrap(save: Any) -> Any:
        def saved(folder: Any, run: Any, progress: Any, identity: str) -> None:
            save(folder, run, progress, identity)
            run.schedule.last_epoch = -1
            run.schedule.step()
            run.optimizer.state.clear()
            if load_checkpoint(folder, run, identity) is None:
                raise RuntimeError("the checkpoint cannot be read")
            progress.resumed_at.append(progress.step)

        return saved

    replace_everywhere("save_checkpoint", wrap, among=_LEARN)
