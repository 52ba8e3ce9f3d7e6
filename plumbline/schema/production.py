"""Evidence at production settings: what `speed` trained, and the replay of its first steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plumbline.schema.base import Count, FailFast, Label, Model, Number, Scalar, Sha256, Step, Text

MAX_TRAIL = 10_000
"""Maximum number of steps of `speed` whose batches, losses and rates a record contains: the first ones."""
CHECKSUM = 2
"""Version of the weights' checksum: 1 does not see a move by a multiple of 64 places."""
_MAX_TAPS = 200_000
_MAX_TRIALS = 64

Mark = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
Marks = Annotated[tuple[Mark, ...], Field(max_length=MAX_TRAIL), FailFast()]


class SpeedTrail(Model):
    """What `speed` trained, step by step from its first warm-up step. `None` is a missing number."""

    num_rows: tuple[Count, ...] = Field(max_length=MAX_TRAIL, fail_fast=True)
    """Rows of the global batch that reached the model."""
    marks: dict[Label, Marks] = Field(max_length=16)
    """By batch field, a checksum of each batch as the model was given it; see `plumbline.schema.sketch`."""
    losses: tuple[Number | None, ...] = Field(max_length=MAX_TRAIL, fail_fast=True)
    learning_rates: tuple[Number, ...] = Field(max_length=MAX_TRAIL, fail_fast=True)
    gradient_norms: tuple[Number | None, ...] = Field(default=(), max_length=MAX_TRAIL, fail_fast=True)
    """Norm of each step's gradients before clipping."""
    clipped_norms: tuple[Number | None, ...] = Field(default=(), max_length=MAX_TRAIL, fail_fast=True)
    """Norm of the gradients after clipping, of the first steps."""
    weights: tuple[tuple[Step, Mark], ...] = Field(max_length=32, fail_fast=True)
    """(number of steps done, checksum of all weights): at the start, after each of the first steps, and at the end."""
    checksum: int = Field(default=1, ge=1, le=CHECKSUM)
    """Version of the checksum of weights; those of two versions are not comparable."""
    apart: tuple[tuple[Step, Count], ...] = Field(default=(), max_length=16, fail_fast=True)
    """(number of steps done, process): the first whose weights were not those of the first process."""
    apart_by: Literal["weights", "gradient", "learning rate"] = "weights"
    """What that process had otherwise in an earlier step; `weights`: nothing, so that an update differs."""
    generators: tuple[tuple[Step, Mark], ...] = Field(default=(), max_length=32, fail_fast=True)
    """(number of steps done, checksum of the random generators of all processes)."""
    settings: dict[Label, Scalar] = Field(default={}, max_length=100)
    """Settings that the built model and optimizer have: attention, fused, foreach, dropout, compiled."""


class ProductionTap(Model):
    """One tensor of the replay's first step."""

    stage: Literal["forward", "gradient"]
    name: Label
    kind: Label
    """The module's class, or that of the module which owns the parameter."""
    dtype: Label
    norm: Number | None
    sha256: Sha256
    error: Number | None
    """Relative error against the portable leg, estimated from sketches; `None` if not finite."""
    envelope: Number | None
    """The same error of the plain model in fp32 whose values are rounded to the format of the precision."""


class ProductionStep(Model):
    """One step of the replay, against the definitions of loss, clipping and update."""

    step: Step
    loss: Number | None
    loss_dtype: Label
    loss_reference: Number | None
    """The loss from the same logits and labels, by its definition in fp64, or as CUDA's autocast rounds it."""
    gradient_norm: Number | None
    gradient_norm_clipped: Number | None
    skipped: bool = False
    """Whether loss scaling skipped the update, as the gradients were not finite."""
    update_excess: Number | None
    """Worst distance of a parameter from the update by AdamW's definition, in units of its rounding in fp32."""
    update_at: Label = ""
    """The parameter of `update_excess`."""


class ProductionTrial(Model):
    """The first step again, with one production choice exchanged, after an error beyond its limit."""

    change: Label
    """Such as `attention=eager`, `compile=off`, `fused=off`, `LayerNorm=fp32`."""
    stage: Label
    name: Label
    before: Number | None
    """The error that was beyond its limit, before the exchange."""
    after: Number | None
    limit: Number


class ProcessReplay(Model):
    """Replay of a further process whose numbers exceed their limits."""

    rank: int = Field(ge=1, le=100_000)
    steps: tuple[ProductionStep, ...] = Field(max_length=1000, fail_fast=True)
    taps: tuple[ProductionTap, ...] = Field(max_length=_MAX_TAPS, fail_fast=True)


class ProductionEvidence(Model):
    """Replay of the first steps at the settings of `speed`, without dropout."""

    steps: tuple[ProductionStep, ...] = Field(default=(), max_length=1000, fail_fast=True)
    taps: tuple[ProductionTap, ...] = Field(default=(), max_length=_MAX_TAPS, fail_fast=True)
    """Of step 0, in the order of execution: `forward` before `gradient`."""
    repeated: bool | None = None
    """Whether the steps, repeated in the same process, gave equal losses and norms, and step 0 equal gradients."""
    operators: tuple[Label, ...] = Field(default=(), max_length=1000, fail_fast=True)
    """Native operators of one step without `compile`, by name."""
    loss_error: Number | None = None
    """Relative error of the first loss against the portable leg."""
    loss_envelope: Number | None = None
    learning_rate: Number = 0.0
    """Learning rate of every step of the replay."""
    trials: tuple[ProductionTrial, ...] = Field(default=(), max_length=_MAX_TRIALS, fail_fast=True)
    processes: tuple[ProcessReplay, ...] = Field(default=(), max_length=100, fail_fast=True)
    """Replays of other processes than the first that are beyond a limit: each process replays the same steps alone."""
    lost: Text = ""
    """Why there is no replay."""
