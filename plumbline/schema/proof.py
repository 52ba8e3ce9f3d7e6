"""Proof of a native step: tensors compared with their fp64 definitions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plumbline.schema.base import Count, Label, Model, Number, Step, Text

ProofStage = Literal["state", "forward", "loss", "gradient", "clipped", "optimizer"]
ORDER: tuple[ProofStage, ...] = ("state", "forward", "loss", "gradient", "clipped", "optimizer")
"""Stages in the order of consequence; `state` is what changed since the step before."""


class ProofError(Model):
    """Largest or excessive distance of a tensor from its definition."""

    stage: ProofStage
    name: Label
    """Module, parameter, or `logits`, `loss`; a gradient is its parameter's, or `MODULE input`."""
    kind: Label
    """Class of the module whose definition it is."""
    dtype: Label
    terms: Count = 1
    """Number of products or values in each sum."""
    error: Number | None
    """In units of half the spacing of `dtype`, relative to the tensor, or to what such roundings move where numbers
    cancel; `None` if not finite."""


class Draws(Model):
    """Dropout statistics of one module over a step: rate, kept elements."""

    name: Label
    rate: Number
    calls: Count
    elements: Count
    kept: Count


class Proof(Model):
    """Result of checking one step against its definitions."""

    step: Step
    errors: tuple[ProofError, ...] = Field(max_length=10_000, fail_fast=True)
    """In the order of computation."""
    tensors: Count
    """Number of tensors that were compared with their definitions."""
    draws: tuple[Draws, ...] = Field(default=(), max_length=10_000, fail_fast=True)
    lost: Text = ""
    """Why there is no proof of this step."""
