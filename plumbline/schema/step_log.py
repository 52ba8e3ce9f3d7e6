"""Log of a part's steps, a column for each question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from plumbline.schema.base import Count, FailFast, Label, Model, Number, ShortDigest, Step

MAX_LOGGED = 10_000
"""Maximum number of steps of a part whose batches, rates and norms a record contains: the first ones."""
_MAX_LOSSES = 2_000_000

Marks = Annotated[tuple[ShortDigest, ...], Field(max_length=MAX_LOGGED), FailFast()]
Numbers = Annotated[tuple[Number | None, ...], Field(max_length=MAX_LOGGED), FailFast()]
Rates = Annotated[tuple[Number, ...], Field(min_length=1, max_length=1000)]
Modes = Annotated[tuple[bool, ...], Field(max_length=MAX_LOGGED), FailFast()]
Formats = Annotated[tuple[Label, ...], Field(max_length=MAX_LOGGED), FailFast()]
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


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step of a part. What its log lacks is `None` or empty, and equals nothing."""

    step: int
    num_rows: int | None = None
    batch: Mapping[str, str] = field(default_factory=dict)
    """By batch field, its checksum."""
    generators: Mapping[str, str] = field(default_factory=dict)
    """By generator, the checksum of its state before the step."""
    is_training: bool | None = None
    logits: str | None = None
    logits_dtype: str | None = None
    loss: float | None = None
    loss_dtype: str | None = None
    defined_loss: float | None = None
    gradients: str | None = None
    gradient_norm: float | None = None
    clipped_norm: float | None = None
    clipped: str | None = None
    learning_rate: float | tuple[float, ...] | None = None
    """Of all parameter groups, or where they differ, of each."""
    loss_scale: float | None = None
    weights: str | None = None
    """Checksum of all weights after the step."""

    @property
    def clipped_bits(self) -> str | float | None:
        """Return what shows the bits of the gradients that the optimizer saw: their checksum, or their norm."""
        return self.clipped_norm if self.clipped is None else self.clipped


class StepLog(Model):
    """Columns of a part's steps, in order. `None` is a missing number; an empty column was not recorded."""

    num_rows: Annotated[tuple[Count, ...], Field(max_length=MAX_LOGGED), FailFast()] = ()
    """Rows of the global batch that reached the model."""
    batches: dict[Label, Marks] = Field(default={}, max_length=16)
    """By batch field, a checksum of each batch as the model was given it; see `plumbline.schema.sketch.mark`."""
    losses: tuple[Number | None, ...] = Field(default=(), max_length=_MAX_LOSSES, fail_fast=True)
    learning_rates: Annotated[tuple[Number | Rates, ...], Field(max_length=MAX_LOGGED), FailFast()] = ()
    """Learning rate of all parameter groups, or where they differ, of each."""
    gradient_norms: Numbers = ()
    """Norm of each step's gradients before clipping."""
    clipped_norms: Numbers = ()
    """The same after clipping, of the first steps."""
    weights: Sums = ()
    """Checksums of all weights: before the first step, after some, and after the last one."""
    generators: dict[Label, Sums] = Field(default={}, max_length=256)
    """By random generator, checksums of its states in all processes, at the same places."""
    is_training: Modes = ()
    """Whether all modules were in training mode. This column and the next ones are the probe's alone."""
    logits: Marks = ()
    """Checksums of the logits of the whole batch."""
    logits_dtype: Formats = ()
    loss_dtype: Formats = ()
    defined_losses: Numbers = ()
    """The loss from the same logits and labels, computed by plumbline in fp64 by the task's definition."""
    gradients: Annotated[tuple[ShortDigest | None, ...], Field(max_length=MAX_LOGGED), FailFast()] = ()
    """Checksums of all gradients before clipping; `None` where a captured loop's are not recorded."""
    clipped: Annotated[tuple[ShortDigest | None, ...], Field(max_length=MAX_LOGGED), FailFast()] = ()
    """Checksums of gradients as the optimizer saw them; of a captured loop alone, whose other steps show no norm."""
    loss_scales: Numbers = ()
    dropout: tuple[Number, ...] | None = Field(default=None, max_length=1000, fail_fast=True)
    """The probabilities of the model's dropout layers as they were built, each once."""
    inconsistent: tuple[Inconsistency, ...] = Field(default=(), max_length=100, fail_fast=True)
    """Parts of the state that changed between two steps, or differ between processes; the first of each."""
    resumed_at: tuple[Step, ...] = Field(default=(), max_length=MAX_LOGGED, fail_fast=True)
    """Steps at which an interrupted run resumed from its checkpoint."""
    resumed_wrongly: tuple[Label, ...] = Field(default=(), max_length=100, fail_fast=True)
    """Parts of the state that a resume did not restore as the run had saved them: `weights`, `moments` ..."""

    @property
    def num_steps(self) -> int:
        """Return the number of logged steps."""
        return len(self.losses)

    @property
    def states(self) -> dict[int, tuple[str, ...]]:
        """Map numbers of done steps to the checksums of all generators."""
        each = [dict(sums) for sums in self.generators.values()]
        places = set(each[0]).intersection(*each[1:]) if each else set[int]()
        return {done: tuple(sums[done] for sums in each) for done in sorted(places)}

    def at(self, step: int) -> LoggedStep:
        """Return one step, from all columns."""
        return self._rows(range(step, step + 1))[0]

    def steps_of(self, count: int | None = None) -> tuple[LoggedStep, ...]:
        """Return the first `count` steps, or all."""
        return self._rows(range(self.num_steps)[:count])

    def _rows(self, steps: range) -> tuple[LoggedStep, ...]:
        weights, generators = dict(self.weights), {name: dict(sums) for name, sums in self.generators.items()}
        columns = {name: getattr(self, column) for name, column in COLUMNS.items()}
        return tuple(
            LoggedStep(
                step=step, weights=weights.get(step + 1),
                batch={name: marks[step] for name, marks in self.batches.items() if step < len(marks)},
                generators={name: sums[step] for name, sums in generators.items() if step in sums},
                **{name: column[step] if step < len(column) else None for name, column in columns.items()},
            )
            for step in steps
        )  # fmt: skip


COLUMNS = {
    "num_rows": "num_rows", "is_training": "is_training", "logits": "logits", "logits_dtype": "logits_dtype",
    "loss": "losses", "loss_dtype": "loss_dtype", "defined_loss": "defined_losses", "gradients": "gradients",
    "gradient_norm": "gradient_norms", "clipped_norm": "clipped_norms", "clipped": "clipped",
    "learning_rate": "learning_rates", "loss_scale": "loss_scales",
}  # fmt: skip
"""Column of each value of a step."""
