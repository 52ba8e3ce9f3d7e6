"""Evidence of the throughput run: training log, and checks of its settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plumbline.schema.base import Count, FailFast, Label, Model, Number, ShortDigest, Step, Text

MAX_LOGGED = 10_000
"""Maximum number of steps of `speed` or `learn` whose batches and rates a record contains: the first ones."""
_MAX_TAPS = 200_000

Apart = Literal["weights", "gradient", "learning rate"]
Marks = Annotated[tuple[ShortDigest, ...], Field(max_length=MAX_LOGGED), FailFast()]


class SpeedTrail(Model):
    """Step-by-step log of the throughput run, including warm-up. `None` is a missing number."""

    num_rows: tuple[Count, ...] = Field(max_length=MAX_LOGGED, fail_fast=True)
    """Rows of the global batch that reached the model."""
    marks: dict[Label, Marks] = Field(max_length=16)
    """By batch field, a checksum of each batch as the model was given it; see `plumbline.schema.sketch`."""
    losses: tuple[Number | None, ...] = Field(max_length=MAX_LOGGED, fail_fast=True)
    learning_rates: tuple[Number, ...] = Field(max_length=MAX_LOGGED, fail_fast=True)
    gradient_norms: tuple[Number | None, ...] = Field(default=(), max_length=MAX_LOGGED, fail_fast=True)
    """Norm of each step's gradients before clipping."""
    clipped_norms: tuple[Number | None, ...] = Field(default=(), max_length=MAX_LOGGED, fail_fast=True)
    """Norm of the gradients after clipping, of the first steps."""
    weights: tuple[tuple[Step, ShortDigest], ...] = Field(max_length=32, fail_fast=True)
    """(number of steps done, checksum of all weights): at the start, after each of the first steps, and at the end."""
    apart: tuple[tuple[Step, Count], ...] = Field(default=(), max_length=16, fail_fast=True)
    """(number of steps done, process): the first whose weights were not those of the first process."""
    apart_by: Apart = "weights"
    """What that process had otherwise in an earlier step; `weights`: nothing, so that an update differs."""
    generators: tuple[tuple[Step, ShortDigest], ...] = Field(default=(), max_length=32, fail_fast=True)
    """(number of steps done, checksum of the random generators of all processes)."""
    dropout: tuple[Number, ...] | None = Field(default=None, max_length=1000, fail_fast=True)
    """The probabilities of the model's dropout layers as they were built, each once."""


class KernelError(Model):
    """Error of a tensor from compiled kernels against fp64."""

    stage: Literal["forward", "gradient"]
    name: Label
    error: Number | None
    eager: Number | None


class ProductionEvidence(Model):
    """Results of the throughput run's own checks, after its measured steps."""

    formula: tuple[tuple[Label, Number | None], ...] = Field(default=(), max_length=_MAX_TAPS, fail_fast=True)
    """(`STAGE NAME`, relative distance from the plain model in fp64) of outputs in the order of execution, of the loss,
    and of gradients backwards; `None` if not finite."""
    repeated: bool | None = None
    """Whether one native step, repeated from the same state, gave equal bits in every process."""
    unsteady: Label = ""
    """The first tensor whose bits differed: `loss`, or a parameter, whose gradient did."""
    kernels: tuple[KernelError, ...] = Field(default=(), max_length=_MAX_TAPS, fail_fast=True)
    """Logits and gradients of a compiled model or of flash-attn; empty where all modules prove themselves."""
    lost: Text = ""
    """Why there are no checks."""
