"""Captured training: a team's own loop, of which nothing is known but what its hooks showed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from plumbline.schema.base import Count, Label, Model, Name, Number, Sha256, ShortDigest, Step, Text, read_model
from plumbline.schema.digest import canonical_json, digest_json
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.manifest import Key
from plumbline.schema.spec import OptimizerSpec, PartName, Precision, ProbeSpec, RunSpec

MAX_CAPTURED = 10_000
"""Maximum number of captured steps."""
_MANY = 200_000
MAX_FILES = 200
"""Maximum number of files that a command is given."""
MAX_ROWS = 50_000
"""Maximum number of rows of a field whose checksums a record contains."""
MAX_CALLS = 5_000
"""Maximum number of calls of torch's functions that a record contains."""
UNKNOWN = frozenset({"batch", "data", "evaluation"})
"""Evidence that no captured record has, such as a manifest; its batches have a rung of their own."""
SmallSketch = Annotated[tuple[Number, ...], Field(min_length=8, max_length=8)]
"""See `plumbline.schema.sketch.small_sketch`."""


Rows = Annotated[
    tuple[Annotated[tuple[ShortDigest, ...], Field(max_length=MAX_ROWS)], ...], Field(max_length=MAX_CAPTURED)
]


class ShippedData(Model):
    """Dataset that a command is given."""

    name: Name
    manifest_sha256: Sha256


class CapturedSpec(Model):
    """Identity of a captured training. Command, files, settings and sources are suspects, and no part of it."""

    kind: Literal["captured"] = "captured"
    workload: Name
    seed: int = Field(ge=0, lt=2**63)
    steps: int = Field(ge=1, le=MAX_CAPTURED)
    batch_size: Count = 1
    """Rows of the first step, over all processes."""
    precision: Precision = "fp32"
    """Shortest format that autocast or the model used, as measured."""
    command: str = Field(default="", max_length=4096)
    """Of a suite's training; empty for one that a person started."""
    files: dict[Key, Sha256] = Field(default={}, max_length=MAX_FILES)
    """Files that it was given, by their place in its folder."""
    data: ShippedData | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of what two records must share: name, seed and number of steps."""
        return digest_json([self.kind, self.workload, self.seed, self.steps])

    @property
    def words(self) -> list[str]:
        """Return the command's words, as a shell would split them."""
        return shlex.split(self.command)

    @property
    def speed_alone(self) -> CapturedSpec:
        """Return the spec itself: throughput has no settings of its own."""
        return self

    @property
    def parts(self) -> tuple[PartName, ...]:
        """Return the only part: the captured steps are judged as a probe's."""
        return ("probe",)

    @property
    def probe(self) -> ProbeSpec:
        """Return what the judge asks of a probe's settings."""
        return ProbeSpec.model_construct(steps=self.steps, tap_steps=(), portable_steps=0, precision=self.precision)

    @property
    def speed(self) -> None:
        """Return `None`: no throughput run is a part of it."""
        return

    @property
    def learn(self) -> None:
        """Return `None`: no learning curve is a part of it."""
        return

    @property
    def task(self) -> str:
        """Return the name of no task."""
        return "captured"

    @property
    def has_row_labels(self) -> bool:
        """Return `True`: no label is hidden at random, as far as anything shows."""
        return True

    @property
    def optimizer(self) -> OptimizerSpec:
        """Return the schema's defaults, which no captured step is compared with."""
        return OptimizerSpec()

    def precision_of(self, part: str) -> Precision:  # noqa: ARG002 - as of a trained spec
        """Return the measured precision."""
        return self.precision


class Exchange(Model):
    """What happened to the gradients of one step between the backward pass and the optimizer."""

    step: Step
    factor: Number | None
    """Gradients that the optimizer saw, as a share of the mean of all processes' own: unscaling and clipping."""
    deviation: Number | None
    """Largest relative distance of a parameter's gradient from that one factor."""
    odd: Label = ""
    """The parameter with this distance."""
    max_norm: Number | None = None
    """Norm to which a single factor below 1 clipped the gradients."""
    apart: tuple[tuple[Count, Label], ...] = Field(default=(), max_length=1000, fail_fast=True)
    """(process, parameter) of processes whose optimizer saw another gradient than the first one's."""
    absent: tuple[Count, ...] = Field(default=(), max_length=1000, fail_fast=True)
    """Processes whose own gradients are no part of the seen ones."""
    own_equal: bool = False
    """Whether the own gradients of the parameters in `apart` are equal in all processes."""


class Fp64Pass(Model):
    """One forward and backward pass of the model in fp64, from weights that are equal on every machine."""

    fed: dict[Label, ShortDigest] = Field(default={}, max_length=64)
    outputs: tuple[tuple[Label, Label, SmallSketch | None], ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """(module, class, sketch of its output) in the order of execution; `None` if not finite."""
    gradients: tuple[tuple[Label, SmallSketch | None], ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    lost: Text = ""


class FunctionCall(Model):
    """One call of a torch function."""

    module: Label
    name: Label
    arguments: dict[Label, Label] = Field(default={}, max_length=64)
    """Plain values by keyword, or by place; `tensor` for a tensor."""
    formats: Label = ""
    """Formats of the tensors that it reads → gives."""
    shapes: Label = ""
    """Their shapes, of a few rows."""


class FunctionCalls(Model):
    """Calls of torch's functions in the model's first pass, in the order of execution."""

    calls: tuple[FunctionCall, ...] = Field(default=(), max_length=MAX_CALLS, fail_fast=True)
    lost: Text = ""
    """Why calls are unknown."""


class CapturedEvidence(Model):
    """What only a captured training has, beside the log and the tensors of a probe."""

    identity: dict[Label, Text] = Field(default={}, max_length=1000)
    """Command, files and sources by digest, settings: a difference is a suspect, never an error."""
    unknown: tuple[Text, ...] = Field(default=(), max_length=1000, fail_fast=True)
    """What was not captured, and why: never equal, never a pass."""
    recorded: tuple[Step, ...] = Field(max_length=1000, fail_fast=True)
    """Steps whose tensors are recorded and proven."""
    updated: tuple[bool, ...] = Field(default=(), max_length=MAX_CAPTURED, fail_fast=True)
    """By step, whether an optimizer ran: loss scaling may skip it."""
    inputs: dict[Label, Annotated[tuple[SmallSketch | None, ...], Field(max_length=MAX_CAPTURED)]] = Field(
        default={}, max_length=64
    )
    """By float argument of the model, a sketch of it in each step."""
    rows: dict[Label, Rows] = Field(default={}, max_length=64)
    """By integer field and step, a checksum of each row, of the first steps."""
    evaluations: tuple[tuple[Step, ShortDigest], ...] = Field(default=(), max_length=MAX_CAPTURED, fail_fast=True)
    """(number of steps done, checksum of the inputs) of passes without a backward pass."""
    exchanges: tuple[Exchange, ...] = Field(default=(), max_length=1000, fail_fast=True)
    window: Fp64Pass | None = None
    functions: FunctionCalls | None = None
    loss: Number | None = None
    """Loss of outputs that are equal on every machine, by the definition that the loop was given, in fp64."""
    stale: tuple[tuple[Step, Label], ...] = Field(default=(), max_length=1000, fail_fast=True)
    """(step, parameter) whose gradient of an earlier step was left when the backward pass began."""
    unheld: tuple[Label, ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """Parameters that got a gradient, and that no given optimizer holds."""
    num_trained: Count = 0
    """Steps in which an optimizer holds a parameter with a gradient."""
    evaluating: tuple[Label, ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """Modules in evaluation mode during the first recorded step."""
    drawn: tuple[Label, ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """Modules that drew dropout in the first pass in evaluation mode between the steps."""
    replicated: bool = False
    """Whether DistributedDataParallel keeps the weights of all processes equal."""
    start: Literal["own", "written", "given"] = "own"
    """Whether the start weights are the loop's own, were written to the start file, or read from it."""


def _kind_of_spec(spec: Any) -> str:
    """Return the kind of a spec: only a captured one says its kind."""
    kind = spec.get("kind") if isinstance(spec, dict) else getattr(spec, "kind", None)
    return "kind:trained" if kind is None else "kind:captured"


Spec = Annotated[
    Annotated[RunSpec, Tag("kind:trained")] | Annotated[CapturedSpec, Tag("kind:captured")],
    Discriminator(_kind_of_spec),
]


class AnySpecFile(Model):
    """File of a spec of either kind, with its claimed digest."""

    schema_version: Literal[1] = 1
    digest: Sha256
    spec: Spec


def read_any_spec(source: bytes | Path, *, where: str = "") -> RunSpec | CapturedSpec:
    """Read a spec of either kind; raise `InvalidInputError` if malformed or edited."""
    file = read_model(AnySpecFile, source, where=where)
    if file.spec.digest != file.digest:
        raise InvalidInputError("is not the digest of its content", where=where or str(source), key="digest")
    return file.spec


def write_any_spec(spec: RunSpec | CapturedSpec, path: Path) -> None:
    """Write a spec of either kind to a file, with its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(canonical_json(AnySpecFile(digest=spec.digest, spec=spec).to_json()))


def captured(spec: Any) -> bool:
    """Return whether a spec is of a captured training."""
    return isinstance(spec, CapturedSpec)
