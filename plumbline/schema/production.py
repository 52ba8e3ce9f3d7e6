"""Results of the checks that the throughput run makes of its settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plumbline.schema.base import Label, Model, Number, Text
from plumbline.schema.stage import Stage, among

_MAX_TAPS = 200_000


class KernelError(Model):
    """Error of a tensor from compiled kernels against fp64."""

    stage: Annotated[Stage, among("forward", "gradient")]
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
