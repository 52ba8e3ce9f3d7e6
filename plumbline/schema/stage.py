"""Stages of a training, for records, proofs, experiments and verdicts alike."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import AfterValidator

Stage = Literal[
    "data", "batch", "architecture", "weights", "settings", "state", "rng", "dropout", "forward", "loss", "gradient",
    "clipped", "schedule", "optimizer", "evaluation", "throughput",
]  # fmt: skip
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order of consequence within one step: later stages can follow from earlier ones.

`weights` are those before the first step, `state` is what changed since the step before, `gradient` and `clipped` are
gradients before and after clipping, `optimizer` is the update, `settings` are precision and determinism.
"""
TAPPED: tuple[Stage, ...] = ("forward", "gradient", "optimizer")
"""Stages of a step whose tensors are recorded: module outputs, gradients, and updated parameters."""
PROVEN: tuple[Stage, ...] = ("state", "forward", "loss", "gradient", "clipped", "optimizer")
"""Stages of a native step that have a definition."""


def among(*stages: Stage) -> AfterValidator:
    """Return the check that a record holds one of `stages`."""

    def check(stage: Stage) -> Stage:
        if stage not in stages:
            raise ValueError(f"is none of {', '.join(stages)}")
        return stage

    return AfterValidator(check)
