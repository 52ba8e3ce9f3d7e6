"""Sixth held-out set: faults of the schedule."""

from __future__ import annotations

import math

from bench.faults.injectors.held_out_fifth.schedule import _after_warm_up
from bench.faults.injectors.training import _factor


def one_cycle() -> None:
    """A recipe uses a one-cycle schedule, which rises for a third of the steps from a 25th of the rate."""

    def cosine(start: float, end: float, share: float) -> float:
        return end + (start - end) * (1 + math.cos(math.pi * share)) / 2

    def factor(step: int, steps: int) -> float:
        rise = steps / 3
        return cosine(0.04, 1.0, step / rise) if step < rise else cosine(1.0, 4e-6, (step - rise) / (steps - rise))

    _factor(lambda _factor: lambda schedule, step, steps: factor(min(step, steps), steps))


def warm_up_starts_at_a_tenth() -> None:
    """A library's warm-up starts at a tenth of the rate."""
    _factor(
        lambda factor: (
            lambda schedule, step, steps: factor(schedule, step, steps) if step >= 2 else 0.1 + 0.9 * step / 2
        )
    )


def triangular_cycles() -> None:
    """A recipe cycles the rate between a half and the whole every six steps."""
    _after_warm_up(lambda factor, schedule, step, steps: 0.5 + abs((step - 2) % 6 - 3) / 6)


def boundary_step_repeated() -> None:
    """A sequence of two schedulers repeats the last step of the warm-up (torch's SequentialLR)."""
    _after_warm_up(lambda factor, schedule, step, steps: factor(schedule, step - 1, steps))
