"""Proof of a native step: tensors compared with their fp64 definitions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plumbline.schema.base import Count, Label, Model, Number, Step, Text
from plumbline.schema.stage import PROVEN, Stage, among


class ProofError(Model):
    """Distance of a tensor from its definition."""

    stage: Annotated[Stage, among(*PROVEN)]
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
    """Zero if nothing draws where the module has a rate."""
    elements: Count
    kept: Count
    alike: Count = 0
    """Number of calls that drop the same elements of all rows of a batch."""


class Proof(Model):
    """Result of checking one step against its definitions."""

    step: Step
    errors: tuple[ProofError, ...] = Field(max_length=10_000, fail_fast=True)
    """One of each tensor that was compared with its definition, in the order of computation."""
    tensors: Count
    """Number of these tensors; records of older versions list the largest errors alone."""
    skipped: bool = False
    """Whether fp16's loss scaling skipped the step: the next one is checked instead."""
    draws: tuple[Draws, ...] = Field(default=(), max_length=10_000, fail_fast=True)
    lost: Text = ""
    """Why there is no proof of this step, or of some of its tensors."""
    lacks_memory: bool = False
    """Whether it is a shortage of memory, which is no property of the model or its settings."""
