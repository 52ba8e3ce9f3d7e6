"""Experiments: short reruns with a restored value, and nightly A/B tests."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from plumbline.schema.base import FailFast, Label, Model, Name, Number, Sha256, Step, Text
from plumbline.schema.digest import digest_json
from plumbline.schema.manifest import Key
from plumbline.schema.spec import Precision
from plumbline.schema.stage import Stage, among

EXPERIMENT_NAME = "experiment.json"

_MAX_INTERVENTIONS = 1000
Names = Annotated[tuple[Label, ...], Field(max_length=200_000), FailFast()]
"""Batch fields, module names or parameter names."""

MAX_BLOCKS = 50
_BLOCK = 4
_HALVES = tuple(combinations(range(_BLOCK), _BLOCK // 2))
# They are arguments of an installer: none may look like an option, a path or an address.
PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=200)]
PackageVersion = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.!+_-]*)?$", max_length=200)]


RESTORED: dict[Stage, str] = {
    "batch": "fields: which of BATCH_FIELDS; tensors `{field}` [steps, ...] (batches.safetensors)",
    "weights": "tensors by parameter name",
    "settings": "every precision and determinism setting imposed again before every step; no tensors",
    "rng": "tensors `rng/{step}` (state.safetensors)",
    "dropout": "learn: every dropout layer's probability as the spec has it; no tensors",
    "forward": "modules: outputs imposed at `step`; tensors `forward/{step}/{module}`",
    "loss": "the loss by its definition, in fp32 (fp64 for an fp64 part); no tensors",
    "gradient": "tensors `gradient/{step}/{parameter}`, imposed after backward at `step`, before clipping",
    "clipped": "tensors `clipped/{step}/{parameter}`, imposed after clipping, before the optimizer",
    "schedule": "the learning rates by the schedule's definition; no tensors",
    "optimizer": "the update by AdamW's definition with the spec's settings; no tensors",
    "evaluation": "the evaluation by its definition: eval mode, the spec's rows, every row once; no tensors",
}
"""What an experiment restores at each stage, and from which tensors."""


class Replay(Model):
    """Reference value to restore for one kind of evidence."""

    stage: Annotated[Stage, among(*RESTORED)]
    fields: Names = ()
    """Empty means all of the source."""
    step: Step | None = None
    """Step at which whole tensors are imposed; `None` means every step."""
    source: Key | None = None
    """The safetensors file in the bundle."""


class Capture(Model):
    """Request to store whole tensors of one kind at one step."""

    stage: Annotated[Stage, among(*RESTORED)]
    names: Names
    step: Step


class Experiment(Model):
    """Rerun of a part's first `steps` with values restored."""

    schema_version: Literal[1] = 1
    experiment_id: Name
    suspect: Text = ""
    """Description of the restored value, for the report."""
    steps: int = Field(ge=1, le=2_000_000)
    part: Literal["probe", "learn"] = "probe"
    """Part that runs again: the probe, or the learning curve up to `steps`."""
    replays: tuple[Replay, ...] = Field(default=(), max_length=_MAX_INTERVENTIONS, fail_fast=True)
    captures: tuple[Capture, ...] = Field(default=(), max_length=_MAX_INTERVENTIONS, fail_fast=True)
    precision: Precision | None = None
    portable: bool = False
    """Whether the windows run again too, without replays."""


class AbOrder(Model):
    """Order for an A/B test: tonight's against the baseline's environment, in blocks of four runs."""

    packages: tuple[tuple[PackageName, PackageVersion], ...] = Field(min_length=1, max_length=10_000, fail_fast=True)
    """Differing packages with the baseline's version; empty if the baseline lacked the package."""
    num_blocks: int = Field(ge=1, le=MAX_BLOCKS)
    seconds: float = Field(gt=0, le=1e9)
    """Maximum seconds: no block is started that would probably end later."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the order of the runs within each block."""

    def block(self, number: int) -> tuple[bool, ...]:
        """Return which two of a block's four runs use tonight's environment.

        The drawn order is what the exact test assumes: no trend or rhythm of the machine can be in its favour.
        """
        drawn = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        chosen = _HALVES[int.from_bytes(drawn[:8]) % len(_HALVES)]
        return tuple(place in chosen for place in range(_BLOCK))

    @property
    def digest(self) -> str:
        """Return the order's digest, which the evidence repeats."""
        return digest_json(self.to_json())


class AbRun(Model):
    """One run of an A/B test's block."""

    block: int = Field(ge=0, lt=MAX_BLOCKS)
    is_tonight: bool
    """Whether the run used tonight's environment, not the baseline's."""
    metrics: dict[Label, Number | None] = Field(default={}, max_length=64)


class AbEvidence(Model):
    """All runs of an A/B test, in execution order."""

    order_sha256: Sha256
    runs: tuple[AbRun, ...] = Field(default=(), max_length=MAX_BLOCKS * _BLOCK, fail_fast=True)
    unavailable: str = Field(default="", max_length=2000)
    """Reason why the baseline's environment could not be built or could not train."""
