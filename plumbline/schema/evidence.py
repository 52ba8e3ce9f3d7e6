"""Evidence: what a run measured and hashed, by rung (kind).

Scalars and digests are here, in JSON. Arrays are separate parts of the record:

`batches.safetensors` (probe): the model's inputs, `row_ids` int64 [steps, batch] and `input_ids`,
`attention_mask`, `token_type_ids`, `labels` integer [steps, batch, length] (labels [steps, batch] in
classification). They say which row differs, and can be replayed.

`sketches.safetensors` (probe): `sketch` float64 [num_taps, 64], row i belonging to `taps[i]`.

`rows.parquet` (all parts): one line for each row that the run reads: `row_id` int64, `text` and `label` uint64,
the first 8 bytes of the SHA-256 of the raw value.

`state.safetensors` (probe): `rng/{step}` uint8, the RNG states at each step's start, to replay.

`evaluation.safetensors` (probe, learn): `row_ids` int64 [rows], `predictions` int64 [rows], `logits` float32.

`answers.safetensors` (learn, classification): `row_ids` int64 [rows] of the last evaluation, `right` uint8 [rows].

`capture.safetensors` (experiments): the whole tensors that an experiment asked for.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plumbline.schema.base import Count, FailFast, Label, Model, Number, Scalar, Sha256, ShortDigest, Step, Text
from plumbline.schema.captured import CapturedEvidence
from plumbline.schema.experiment import AbEvidence
from plumbline.schema.manifest import ImportReceipt, Shard
from plumbline.schema.production import ProductionEvidence
from plumbline.schema.proof import Proof
from plumbline.schema.stage import TAPPED, Stage, among
from plumbline.schema.step_log import StepLog

SKETCH_SIZE = 64
BATCH_FIELDS = ("row_ids", "input_ids", "attention_mask", "token_type_ids", "labels")
Counts = Annotated[dict[Label, Number], Field(max_length=1000)]
_MANY = 200_000
"""Maximum number of modules, parameters, taps or evaluations; larger records are refused."""
_MAX_PROBE_STEPS = 1000
_MAX_SAMPLES = 100_000

ProbeStep = Annotated[int, Field(ge=0, le=_MAX_PROBE_STEPS)]
Shape = Annotated[tuple[Count, ...], Field(max_length=64), FailFast()]
Samples = Annotated[tuple[Number | None, ...], Field(max_length=_MAX_SAMPLES), FailFast()]


class DataEvidence(Model):
    """Evidence on the dataset rows that the run read."""

    manifest_sha256: Sha256
    tokenizer_sha256: Sha256
    rows_sha256: Sha256
    """SHA-256 of all raw rows read, in row order."""
    num_rows: Count
    shards: tuple[Shard, ...] = Field(max_length=10_000, fail_fast=True)
    """All shards of the manifest found, in the order that numbers the rows (at most 10,000 are kept)."""
    receipt: ImportReceipt | None = None
    """How the user's files were read, by the manifest; only of imported data."""
    best_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Maximum achievable accuracy, by the manifest; only of generated data."""


class Parameter(Model):
    """One parameter of the built model: name, shape, tying."""

    name: Label
    shape: Shape
    dtype: Label
    sha256: Sha256
    """Digest of the initial values, as all of tensors (`plumbline.train.digests`)."""
    trainable: bool = True
    tied_to: Label = ""


class ModelEvidence(Model):
    """Evidence on the model as built, not as configured."""

    parameters: tuple[Parameter, ...] = Field(max_length=_MANY, fail_fast=True)
    modules: tuple[tuple[Label, Text], ...] = Field(max_length=_MANY, fail_fast=True)
    """(name, class with its settings, as in `LayerNorm(eps=1e-12)`) of every module, in the order of registration."""
    weights_sha256: Sha256
    """Digest of all initial values, by name."""


class OptimizerGroup(Model):
    """One optimizer parameter group: hyperparameters and parameter names."""

    settings: dict[Label, Scalar] = Field(max_length=1000)
    parameters: tuple[Label, ...] = Field(max_length=_MANY, fail_fast=True)


class Tap(Model):
    """Description of one sketched tensor: module output, gradient, or updated parameter."""

    step: ProbeStep
    stage: Annotated[Stage, among(*TAPPED)]
    name: Label
    kind: Label
    """The module's class, or that of the module which owns the parameter."""
    dtype: Label
    shape: Shape
    norm: Number | None
    """L2 norm in fp64."""
    sha256: Sha256
    leaf: bool = True


Proofs = Annotated[tuple[Proof, ...], Field(max_length=100), FailFast()]
"""Native steps of a part beside their definitions; none in experiments, of which each asks for what it needs."""
Share = Annotated[float, Field(ge=0, le=1)]


Recounted = tuple[Number | None, Share | None]
"""Loss and accuracy of an evaluation, counted by their definitions from the model's logits."""


class EvaluationEvidence(Model):
    """Evidence of an evaluation over fixed rows."""

    step: Step
    num_rows: Count
    rows_sha256: Sha256
    training_mode: bool
    predictions_sha256: Sha256
    logits_sha256: Sha256
    loss: Number | None
    accuracy: Share | None
    """Accuracy of labels, or of hidden tokens in masked language modelling."""


SmallSketch = Annotated[tuple[Number, ...], Field(min_length=8, max_length=8), FailFast()]
"""See `plumbline.schema.sketch.small_sketch`."""
NamedDigests = Annotated[tuple[tuple[Label, ShortDigest | None], ...], Field(max_length=_MANY), FailFast()]
"""(name, digest) of tensors; `None` if not finite."""


class NativeOperation(Model):
    """Digest of one native operation on fixed inputs, showing this machine's rounding."""

    name: Label
    sha256: ShortDigest
    """Digest of its outputs and of the gradients of its inputs."""
    sketch: SmallSketch
    """Shows whether different bits are the same numbers."""


class PortableWindow(Model):
    """One training step in fp64, which rounds by some 1e-15; a digest is `None` if not finite, which equals nothing.

    Each part keeps what it measures: those of `speed` and `learn` start from given weights and moments, those of the
    probe from its last one.
    """

    step: Step
    """The step that the window repeats; of the second one of `speed`, a step that no warm-up reaches."""
    fed: NamedDigests = ()
    """(field, digest) of the window's batch, by `BATCH_FIELDS`."""
    loss: Label | None
    """The loss over the window's rows, an fp64 number in hexadecimal."""
    outputs: NamedDigests = ()
    """(module, digest of its output), in the order of execution; in the probe, at tap steps only."""
    gradients: NamedDigests
    """(parameter, digest of its gradient before clipping), in the order of the model."""
    clipped: NamedDigests = ()
    """The same after clipping; in `speed` and `learn` the last one alone, which shows the factor of all."""
    weights: NamedDigests
    """(parameter, digest of its value after the step)."""
    sketches: tuple[tuple[Label, SmallSketch], ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """(`STAGE NAME`, fp64 sketch) of all tensors above, and of `evaluated`: what decides where digests differ."""
    evaluation: EvaluationEvidence | None = None
    """The curve's evaluation of the first rows, with the weights after the step. Each row's logits are reduced by the
    opposite row's."""
    evaluated: NamedDigests = ()
    """`inputs` and `labels` of the evaluation, then (module, digest of its output) in the order of execution."""
    formats: dict[Label, Label] = Field(default={}, max_length=_MANY)
    """Format of autocast around each module's call, by `STAGE NAME`; none without autocast."""


class RankDifference(Model):
    """First difference of one process's windows from the majority's."""

    rank: int = Field(ge=0, le=100_000)
    at: Step
    stage: Stage
    name: Label
    formats: tuple[Label, Label] | None = None
    """Number formats of most processes and of this one, if they differ there."""


class PortableEvidence(Model):
    """Steps of a part in fp64 ("windows"), whose numbers are equal on every machine within `limits.EXACT`."""

    windows: tuple[PortableWindow, ...] = Field(max_length=_MAX_PROBE_STEPS, fail_fast=True)
    repeated: bool | None = None
    """Whether the first step, repeated on each device of the run, gave the same numbers; `None` if it was not."""
    lost: Text = ""
    """Reason why windows are missing, such as too little memory."""
    ranks: tuple[RankDifference, ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """Processes whose windows differ from those of most others."""
    drawn: tuple[Number, ...] | None = Field(default=None, min_length=8, max_length=8)
    """Sketch of the logits of a row that the round's name draws, by the weights after the first step; `None` without a
    round."""


class ProbeEvidence(StepLog):
    """All evidence of the probe: a log with all columns, and the tensors of some steps."""

    taps: tuple[Tap, ...] = Field(max_length=_MANY, fail_fast=True)
    """In the order of execution, step by step, by `TAPPED`."""
    optimizer: tuple[OptimizerGroup, ...] = Field(max_length=1000, fail_fast=True)
    evaluation: EvaluationEvidence | None = None
    recounted: Recounted | None = None
    """Loss and accuracy of the evaluation."""
    portable: PortableEvidence | None = None
    proofs: Proofs = ()


class SpeedEvidence(StepLog):
    """Throughput evidence of a run, with explaining measurements. Times in seconds."""

    steps: Step
    warmup_steps: Step
    """Number of steps before the step time was steady, as measured."""
    samples_per_second: Number | None
    """All rows of the measured steps over `wall_seconds`."""
    tokens_per_second: Number | None
    step_seconds: Number | None
    """Median seconds per step, without stalls."""
    step_seconds_quartiles: tuple[Number, Number] | None = None
    step_seconds_p95: Number | None = None
    """95th percentile of the step time: shows a few slow steps, which quartiles do not."""
    wall_seconds: float | None = Field(default=None, gt=0, le=1e9)
    """From the first measured step's start to the last one's end, stalls between and within steps included."""
    breakdown: Counts = {}
    """Mean times per step: `data_wait`, `host_to_device`, `forward`, `backward`, `optimizer`, `communication`."""
    mfu: Number | None = None
    """Model FLOPs utilisation against the measured GEMM rate in the precision in force."""
    real_tokens_per_second: Number | None = None
    """Without padding, as `real_mfu`."""
    real_mfu: Number | None = None
    """`mfu` of the operations that the tokens need without padding."""
    peak_memory_bytes: Count | None = None
    """Of the accelerator during the measured steps; on a CPU, the process's own."""
    peak_host_memory_bytes: Count | None = None
    """Of the process during the measured steps."""
    microbenchmarks: Counts = {}
    """`gemm_flops`, `device_copy_bytes_per_second`, `host_copy_bytes_per_second`, `disk_read_bytes_per_second`,
    `host_gemm_flops`, each measured before the part (`name`) and after its measured steps (`name_after`)."""
    samples: dict[Label, Samples] = Field(default={}, max_length=200)
    """The 1 Hz sampler by name: `cpu_steal`, `load`, `cgroup_throttled`, `gpu_clock_mhz`, `gpu_throttle_reasons`,
    `foreign_gpu_processes`, `foreign_cpu` ... Equal lengths; `None` where a value could not be read."""
    proofs: Proofs = ()
    portable: PortableEvidence | None = None
    """Windows before the first step and behind the last one; `None` if the spec asks for none."""
    production: ProductionEvidence | None = None
    """Checks behind the measured steps; `None` if the spec asks for none."""


class LearnEvidence(StepLog):
    """Evidence of the learning run: curve and evaluations."""

    steps: Step
    evaluations: tuple[EvaluationEvidence, ...] = Field(max_length=_MANY, fail_fast=True)
    evaluated: tuple[tuple[ShortDigest, ShortDigest], ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """Digests of each evaluation's labels and of its ids, masks and segments."""
    recounted: tuple[Recounted, ...] = Field(default=(), max_length=_MANY, fail_fast=True)
    """Loss and accuracy of each evaluation."""
    chance: Share | None = None
    """Accuracy of the most frequent label as the only answer, in the last evaluation."""
    num_predicted: Count | None = None
    """Number of different labels that the last evaluation predicts; `None` for labels of tokens."""
    proofs: Proofs = ()
    portable: PortableEvidence | None = None
    """`None` in experiments."""

    @property
    def last_weights(self) -> str | None:
        """Return the checksum of the final weights; `None` if the device failed."""
        return dict(self.weights).get(self.steps)


class SelfcheckEvidence(Model):
    """Self-check result: bundled training's first step, compared with expected numbers."""

    verdict: Literal["pass", "drift", "unknown"]
    """`unknown`: the release has no numbers for these versions of torch and transformers, or lost its windows."""
    at: str = Field(default="", max_length=500)
    """Where the numbers first differ."""


class Evidence(Model):
    """All comparable evidence of one training."""

    selfcheck: SelfcheckEvidence | None = None
    """Only in trainings of a round."""
    data: DataEvidence | None = None
    model: ModelEvidence | None = None
    probe: ProbeEvidence | None = None
    speed: SpeedEvidence | None = None
    learn: LearnEvidence | None = None
    captured: CapturedEvidence | None = None
    """Of a training whose loop is a team's own."""
    ab: AbEvidence | None = None
    """Evidence of the interleaved runs, in the record of an A/B."""

    @property
    def production(self) -> ProductionEvidence | None:
        """Return the throughput run's checks of itself, if any."""
        return self.speed.production if self.speed is not None else None
