"""Fifth held-out set: faults of the schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.faults.injectors.patching import wrap_method
from bench.faults.injectors.training import _factor
from plumbline.train import engine


def _after_warm_up(change: Callable[[Any, Any, int, int], float]) -> None:
    """Replace the factor from the third step on."""
    _factor(
        lambda factor: (
            lambda schedule, step, steps: (
                factor(schedule, step, steps) if step < 2 else change(factor, schedule, step, steps)
            )
        )
    )


def exponential_decay() -> None:
    """The rate falls by a fifth at each step."""
    _after_warm_up(lambda factor, schedule, step, steps: 0.8 ** (step - 2))


def rate_in_stairs() -> None:
    """The rate falls at every third step only."""
    _after_warm_up(lambda factor, schedule, step, steps: factor(schedule, 2 + (step - 2) // 3 * 3, steps))


def warm_up_by_squares() -> None:
    """The warm-up rises by a square instead of a line."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, step, steps) ** (2 if step < 2 else 1))


def decay_counts_the_warm_up() -> None:
    """The decay runs over all steps, including the warm-up."""
    _after_warm_up(lambda factor, schedule, step, steps: (steps - step) / steps)


def decay_ends_a_step_early() -> None:
    """The decay reaches zero at the last step."""
    _after_warm_up(lambda factor, schedule, step, steps: factor(schedule, step, steps - 1))


def rate_printed_and_read_back() -> None:
    """The rate passes a text of two digits."""
    _factor(lambda factor: lambda schedule, step, steps: float(f"{factor(schedule, step, steps):.1e}"))


def halved_on_a_plateau() -> None:
    """The rate is halved whenever the loss rises."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            outcome = step(self, number, batch)
            loss = outcome.loss(self.ranks)
            if loss > self.__dict__.get("last_loss", loss):
                self.schedule.base_lrs = [rate / 2 for rate in self.schedule.base_lrs]
                for group in self.optimizer.param_groups:
                    group["lr"] /= 2
            self.__dict__["last_loss"] = loss
            return outcome

        return stepped

    wrap_method(engine.Engine, "step", wrap)


def group_of_biases_without_warm_up() -> None:
    """The group without weight decay starts at the full rate."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            if number < 2:
                self.optimizer.param_groups[1]["lr"] = self.spec.optimizer.learning_rate
            return step(self, number, batch)

        return stepped

    wrap_method(engine.Engine, "step", wrap)
