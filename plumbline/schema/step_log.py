"""Log of a part's steps, a column for each question."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plumbline.schema.base import Count, FailFast, Label, Model, Number, ShortDigest, Step

MAX_LOGGED = 10_000
"""Maximum number of steps of a part whose batches, rates and norms a record contains: the first ones."""
_MAX_LOSSES = 2_000_000

Marks = Annotated[tuple[ShortDigest, ...], Field(max_length=MAX_LOGGED), FailFast()]
Numbers = Annotated[tuple[Number | None, ...], Field(max_length=MAX_LOGGED), FailFast()]
Sums = Annotated[tuple[tuple[Step, ShortDigest], ...], Field(max_length=MAX_LOGGED), FailFast()]
"""(number of steps done, checksum)."""
WatchedPart = Literal["weights", "moments", "masks", "gradients", "learning rate"]
WatchedEvent = Literal["evaluation", "checkpoint", "step", "processes"]


class Inconsistency(Model):
    """Wrong weights, moments or dropout masks that a run noticed."""

    step: Step
    """Number of steps done."""
    rank: int = Field(ge=0, le=100_000)
    part: WatchedPart
    event: WatchedEvent
    """What changed the part between two steps; `step`: dropout masks of other rows than the process trained on;
    `processes`: weights, or what the next step trains with, that are not those of the first process."""


class StepLog(Model):
    """Columns of a part's steps, in order. `None` is a missing number; an empty column was not recorded."""

    num_rows: Annotated[tuple[Count, ...], Field(max_length=MAX_LOGGED), FailFast()] = ()
    """Rows of the global batch that reached the model."""
    batches: dict[Label, Marks] = Field(default={}, max_length=16)
    """By batch field, a checksum of each batch as the model was given it; see `plumbline.schema.sketch.mark`."""
    losses: tuple[Number | None, ...] = Field(default=(), max_length=_MAX_LOSSES, fail_fast=True)
    learning_rates: Annotated[tuple[Number, ...], Field(max_length=MAX_LOGGED), FailFast()] = ()
    """Mean learning rate over all parameter groups."""
    gradient_norms: Numbers = ()
    """Norm of each step's gradients before clipping."""
    clipped_norms: Numbers = ()
    """The same after clipping, of the first steps."""
    weights: Sums = ()
    """Checksums of all weights: before the first step, after some, and after the last one."""
    generators: Sums = ()
    """Checksums of the random generators of all processes, at the same places."""
    dropout: tuple[Number, ...] | None = Field(default=None, max_length=1000, fail_fast=True)
    """The probabilities of the model's dropout layers as they were built, each once."""
    inconsistent: tuple[Inconsistency, ...] = Field(default=(), max_length=100, fail_fast=True)
    """Parts of the state that changed between two steps, or differ between processes; the first of each."""
    resumed_at: tuple[Step, ...] = Field(default=(), max_length=MAX_LOGGED, fail_fast=True)
    """Steps at which an interrupted run resumed from its checkpoint."""
    resumed_wrongly: tuple[Label, ...] = Field(default=(), max_length=100, fail_fast=True)
    """Parts of the state that a resume did not restore as the run had saved them: `weights`, `moments` ..."""
