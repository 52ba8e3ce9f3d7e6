"""Experiment: a short rerun of the probe with a suspect restored to the reference's value.

An experiment is sent as a bundle, a folder (or a prefix in a store): `experiment.json` and the safetensors files that
its replays name. A replay imposes the reference's value at one rung; a capture keeps whole tensors, which the record's
sketches cannot contain, for a later replay elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plumbline.schema.base import Label, Model, Name, Step, Text
from plumbline.schema.compat import FailFast
from plumbline.schema.manifest import Key
from plumbline.schema.spec import Attention, Precision

EXPERIMENT_NAME = "experiment.json"

Rung = Literal[
    "batch",  # fields: which of BATCH_FIELDS; tensors `{field}` [steps, ...] (batches.safetensors)
    "weights",  # tensors by parameter name
    "rng",  # tensors `rng/{step}` (state.safetensors)
    "forward",  # modules: outputs imposed at `step`; tensors `forward/{step}/{module}`
    "loss",  # the loss by its definition, in fp32 (fp64 for an fp64 part); no tensors
    "gradient",  # tensors `gradient/{step}/{parameter}`, imposed after backward at `step`, before clipping
    "clipped",  # tensors `clipped/{step}/{parameter}`, imposed after clipping, before the optimizer
    "optimizer",  # the update by AdamW's definition with the spec's settings; no tensors
    "schedule",  # the learning rates by the schedule's definition; no tensors
    "evaluation",  # the evaluation by its definition: eval mode, the spec's rows, every row once; no tensors
    "dropout",  # learn: every dropout layer's probability as the spec has it; no tensors
    "moments",  # the optimizer's state before `step`; tensors `moments/{step}/{parameter}/{key}`
    "settings",  # every precision and determinism setting imposed again before every step; no tensors
]


_MAX_INTERVENTIONS = 1000
Names = Annotated[tuple[Label, ...], Field(max_length=200_000), FailFast()]
"""Batch fields, module names or parameter names."""


class Replay(Model):
    """Restored reference value at one rung."""

    rung: Rung
    fields: Names = ()
    """Empty means all of the source."""
    step: Step | None = None
    """Step at which whole tensors are imposed; `None` means every step."""
    source: Key | None = None
    """The safetensors file in the bundle."""


class Capture(Model):
    """Request to keep whole tensors of a rung at one step."""

    rung: Rung
    names: Names
    step: Step


class Experiment(Model):
    """Rerun of the probe's first `steps`, with replays imposed."""

    schema_version: Literal[1] = 1
    experiment_id: Name
    suspect: Text = ""
    """Description of the restored value, for the report."""
    steps: int = Field(ge=1, le=2_000_000)
    part: Literal["probe", "learn"] = "probe"
    """Part that runs again: the probe, or the learning curve up to `steps`."""
    trace: Step | None = None
    """learn: the first step recorded with the probe's evidence; `None` records none.

    The evidence, the replays and the captures count their steps from this step, as 0."""
    replays: tuple[Replay, ...] = Field(default=(), max_length=_MAX_INTERVENTIONS, fail_fast=True)
    captures: tuple[Capture, ...] = Field(default=(), max_length=_MAX_INTERVENTIONS, fail_fast=True)
    precision: Precision | None = None
    attention: Attention | None = None
    portable: bool = False
    """Whether the portable leg runs again too, without replays."""
