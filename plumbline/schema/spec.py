"""RunSpec: the frozen description of one training. Its digest is its identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator
from typing_extensions import Self

from plumbline.schema.base import Count, Label, Model, Name, Number, PlainJson, Sha256, Step, Whole, read_model
from plumbline.schema.digest import canonical_json, digest_json
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.manifest import Key
from plumbline.schema.task import Task, has_row_labels

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp64"]
MANTISSA_BITS: dict[Precision, int] = {"fp64": 52, "fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7}
"""Bits of mantissa that each format keeps."""
Attention = Literal["eager", "sdpa"]
PartName = Literal["probe", "speed", "learn"]
PARTS: tuple[PartName, ...] = get_args(PartName)
"""Parts of a training, in execution order."""
SdpaKernel = Literal["flash", "mem_efficient", "math", "cudnn"]
SDPA_KERNELS: tuple[SdpaKernel, ...] = ("flash", "mem_efficient", "math", "cudnn")

_MAX_STEPS = 2_000_000
"""A record contains the loss of every step, in 64 MiB."""
_MAX_ROWS = 1_000_000_000

_NEWER: tuple[tuple[str, str, Any], ...] = (
    ("data", "class_names", []),
    ("model", "family", "bert"),
    ("model", "settings", {}),
    ("probe", "portable_seconds", None),
    ("probe", "micro_batch", None),
    ("speed", "checks", True),
    ("speed", "compile_mode", "default"),
    ("speed", "sdpa_kernels", ["flash", "mem_efficient", "math", "cudnn"]),
    ("speed", "foreach_optimizer", None),
    ("speed", "tf32", False),
    ("speed", "reduced_precision_reduction", True),
    ("speed", "cudnn_benchmark", False),
    ("speed", "gradient_checkpointing", False),
    ("speed", "padding", "fixed"),
    ("speed", "data_workers", 0),
    ("speed", "prefetch_factor", 2),
    ("speed", "pin_memory", True),
    ("speed", "ddp_bucket_mb", None),
    ("speed", "ddp_static_graph", False),
    ("speed", "optimizer", "adamw"),
    ("speed", "distributed", "ddp"),
    ("learn", "compile", False),
    ("learn", "expect", "learning"),
)
"""Keys of later releases with their defaults, which a digest does not contain."""


class ModelSpec(Model):
    """Model of the BERT family: architecture, and digest of the initial weights."""

    family: str = Field(default="bert", pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$")
    """The `model_type` of transformers."""
    settings: dict[Label, PlainJson] = Field(default={}, max_length=200)
    """Keys of the checkpoint's `config.json` that decide what is computed; for families other than BERT."""

    hidden_size: int = Field(ge=8, le=16384)
    num_hidden_layers: int = Field(ge=1, le=200)
    num_attention_heads: int = Field(ge=1, le=256)
    intermediate_size: int = Field(ge=8, le=65536)
    max_position_embeddings: int = Field(ge=8, le=65536)
    vocab_size: int = Field(ge=5, le=2_000_000)
    type_vocab_size: int = Field(default=2, ge=1, le=16)
    hidden_act: Label = "gelu"
    layer_norm_eps: float = Field(default=1e-12, gt=0, lt=1)
    pad_token_id: Count = 0
    num_labels: int | None = Field(default=None, ge=2, le=1_000_000)
    weights_key: Key
    """The safetensors file of the initial weights, below the data URL."""
    weights_sha256: Sha256

    @model_validator(mode="after")
    def _heads_divide_hidden_size(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size is not a multiple of num_attention_heads")
        return self


class DataSpec(Model):
    """Dataset, and how rows become batches."""

    name: Name
    manifest_sha256: Sha256
    sequence_length: int = Field(ge=8, le=65536)
    mask_probability: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens hidden in masked language modelling; unused elsewhere."""
    class_names: tuple[Label, ...] = Field(default=(), max_length=10_000, fail_fast=True)
    """Classes of the labels; empty for generated data."""


class OptimizerSpec(Model):
    """AdamW settings, without weight decay for biases and normalisations."""

    learning_rate: float = Field(default=5e-4, gt=0, lt=10)
    """The highest, after warm-up. A suite's default depends on `model`: 0.001 for `tiny` and `mini`, 0.0005 for `small`
    and `medium`, 0.0001 for `base` and `large`, 0.00005 for a checkpoint."""
    betas: tuple[Number, Number] = (0.9, 0.999)
    """Decay rates of both moments."""
    eps: float = Field(default=1e-8, gt=0, le=1e9)
    """Keeps the division finite."""
    weight_decay: float = Field(default=0.01, ge=0, le=1e9)
    """Decoupled."""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e100)
    """Gradients are clipped to this norm."""
    accumulation_steps: int = Field(default=1, ge=1, le=1024)
    """Micro-batches that make one batch; must divide `batch_size`."""


class ScheduleSpec(Model):
    """Linear warm-up, then decay to zero, or a constant rate."""

    kind: Literal["linear", "cosine", "constant"] = "linear"
    """After a linear warm-up: decay to zero over the steps of the part, along a line or half a cosine, or a constant
    rate."""
    warmup_steps: Step = 2
    """Steps until the full learning rate; a suite's default for `base`, `large` and checkpoints is a tenth of
    `learn`."""


class ProbeSpec(Model):
    """Probe settings: a short strict run without dropout, on fixed batches."""

    steps: int = Field(default=20, ge=1, le=200)
    """More than 20 say little more, as rounding doubles about every 9 steps."""
    precision: Precision = "fp32"
    """Of the arithmetic."""
    attention: Attention = "eager"
    """The implementation of attention."""
    tap_steps: tuple[Whole, ...] = Field(default=(0,), max_length=1000, fail_fast=True)
    """Counted from 0: steps at which every module's output and every gradient is sketched; the last step always is."""
    evaluation_rows: int = Field(default=64, ge=1, le=_MAX_ROWS)
    """Rows evaluated at the end."""
    portable_steps: int = Field(default=8, ge=0, le=200)
    """Maximum number of windows, which repeat a step in fp64; two of at least four are of later steps; 0: none."""
    portable_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Time after which the probe begins no further window; it has at least one, and the record says which."""
    micro_batch: int | None = Field(default=None, ge=1, le=65536)
    """Maximum number of rows that a process computes at once, in the probe and its windows; without the key the
    parts are those of `optimizer`. Each process adds up equal parts in order. Rounding depends on it, so that it is a
    part of the task."""


class SpeedSpec(Model):
    """Throughput run at production settings, measured after warm-up. The later keys have torch's own defaults."""

    steps: int = Field(default=200, ge=10, le=_MAX_STEPS)
    """Steps measured after the warm-up."""
    precision: Precision = "bf16"
    attention: Literal["eager", "sdpa", "flash_attention_2"] = "sdpa"
    """The last needs the package flash-attn, and bf16 or fp16."""
    compile: bool = False
    """`torch.compile`."""
    fused_optimizer: bool = True
    """The fused kernel of AdamW."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    checks: bool = True
    """Whether windows, checks and proofs judge these settings, before and behind the measured steps."""
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """The mode of `torch.compile`; needs `compile = true`."""
    sdpa_kernels: tuple[SdpaKernel, ...] = Field(default=SDPA_KERNELS, min_length=1, max_length=4, fail_fast=True)
    """Kernels from which `sdpa` may choose on a GPU."""
    foreach_optimizer: bool | None = None
    """Updates of many tensors at once; without the key torch chooses. False beside `fused_optimizer = false` updates
    one tensor after the other."""
    tf32: bool = False
    """TF32 for products in fp32, such as those outside of autocast."""
    reduced_precision_reduction: bool = True
    """Products in fp16 and bf16 may add up in that format, on a GPU."""
    cudnn_benchmark: bool = False
    """CuDNN tries its algorithms, on a GPU."""
    gradient_checkpointing: bool = False
    """Activations are computed again in the backward pass."""
    padding: Literal["fixed", "longest", "packed"] = "fixed"
    """`"longest"` cuts each global batch at its longest row, rounded up to a multiple of 8. `"packed"` puts several
    texts into one row, each with its own positions, attending to itself alone: for `task = "masked-lm"` and the family
    BERT only, with `sdpa` or `eager` and without `compile`."""
    data_workers: int = Field(default=0, ge=0, le=64)
    """Processes that put batches together; 0 is the training's own. The batches are the same."""
    prefetch_factor: int = Field(default=2, ge=1, le=64)
    """Batches that each worker has ready."""
    pin_memory: bool = True
    """Batches wait in pinned memory, on a GPU; without it the host waits for each copy. torch's default is false."""
    ddp_bucket_mb: int | None = Field(default=None, ge=1, le=4096)
    """Size of the buckets in which several GPUs exchange gradients; without the key it is torch's own: 25, and 1 for
    the first."""
    ddp_static_graph: bool = False
    """Several GPUs may assume the same operations in every step."""
    optimizer: Literal["adamw", "sgd", "adafactor"] = "adamw"
    """torch's own, at the workload's learning rate and weight decay. `"sgd"` has the first of `betas` as momentum.
    `"adafactor"` needs torch 2.5 and `fused_optimizer = false`; it reads each weight's size, for which the host waits
    on a GPU. The probe and `learn` train with AdamW."""
    distributed: Literal["ddp", "fsdp"] = "ddp"
    """How several GPUs share the work. `"fsdp"` shards weights, gradients and optimizer layer by layer, by torch's
    `fully_shard` (torch 2.6 or newer); it is refused with one process."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.fused_optimizer and self.foreach_optimizer:
            raise ValueError("foreach_optimizer and fused_optimizer exclude each other")
        if self.compile_mode != "default" and not self.compile:
            raise ValueError("compile_mode needs compile = true")
        if self.attention == "flash_attention_2" and self.precision not in {"bf16", "fp16"}:
            raise ValueError(f"attention: flash_attention_2 computes in bf16 or fp16, not in {self.precision}")
        if self.optimizer == "adafactor" and self.fused_optimizer:
            raise ValueError("optimizer: adafactor has no fused kernel: set fused_optimizer = false")
        if self.padding == "packed" and (self.compile or self.attention == "flash_attention_2"):
            raise ValueError(
                "padding: packed rows need a mask for each batch: set compile = false and attention sdpa or eager"
            )
        if self.distributed == "fsdp" and (self.ddp_static_graph or self.ddp_bucket_mb):
            raise ValueError(
                "distributed: ddp_bucket_mb and ddp_static_graph are DistributedDataParallel's, not fsdp's"
            )
        return self


class LearnSpec(Model):
    """Learning run settings: fixed number of steps, portable dropout."""

    steps: int = Field(default=2000, ge=1, le=_MAX_STEPS)
    """Fixed: accuracy is compared at equal steps."""
    precision: Precision = "fp32"
    attention: Attention = "sdpa"
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Portable: the same masks on every device."""
    compile: bool = False
    """`torch.compile` for the steps; evaluations and windows run the plain model."""
    evaluate_every: int = Field(default=500, ge=1, le=_MAX_STEPS)
    """Steps between evaluations; the last step is always evaluated."""
    checkpoint_every: int = Field(default=500, ge=1, le=_MAX_STEPS)
    """Steps between checkpoints; an interrupted run resumes from the last."""
    evaluation_rows: int = Field(default=1024, ge=1, le=_MAX_ROWS)
    """Rows evaluated."""
    expect: Literal["learning", "chance"] = "learning"
    """`"learning"`: a final accuracy that is not above that of the most frequent label is `inconclusive`. `"chance"`:
    the steps are too few to learn, and the accuracy is only compared."""


class RunSpec(Model):
    """Specification of one training. Identical tasks have equal digests."""

    schema_version: Literal[1] = 1
    workload: Name
    task: Task
    model: ModelSpec
    data: DataSpec
    seed: int = Field(ge=0, lt=2**63)
    batch_size: int = Field(ge=1, le=65536)
    """Global: over all devices and micro-batches."""
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    probe: ProbeSpec | None = None
    speed: SpeedSpec | None = None
    learn: LearnSpec | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON, omitting newer keys at defaults to keep digests stable."""
        content = super().to_json()
        for part, key, plain in _NEWER:
            if content[part] is not None and content[part][key] == plain:
                del content[part][key]
        return content

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, as task identity."""
        return digest_json(self.to_json())

    @property
    def speed_alone(self) -> RunSpec:
        """Return the spec of the throughput run alone, without portable checks; of this spec, the spec itself.

        Two trainings measure the same throughput if these specs are equal.
        """
        if self.speed is None:
            return self
        return self.replace(probe=None, learn=None, speed=self.speed.replace(checks=False))

    @property
    def parts(self) -> tuple[PartName, ...]:
        """Return the parts in execution order."""
        return tuple(part for part in PARTS if getattr(self, part))

    def precision_of(self, part: str) -> Precision:
        """Return the precision of a part; fp32 without the part."""
        chosen: ProbeSpec | SpeedSpec | LearnSpec | None = getattr(self, part)
        return chosen.precision if chosen is not None else "fp32"

    @property
    def has_row_labels(self) -> bool:
        """Return whether labels belong to rows, not tokens."""
        return has_row_labels(self.task)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.parts:
            raise ValueError("no part: at least one of probe, speed and learn is needed")
        if self.has_row_labels and self.model.num_labels is None:
            raise ValueError("model.num_labels is missing")
        if self.batch_size % self.optimizer.accumulation_steps:
            raise ValueError("optimizer.accumulation_steps does not divide batch_size")
        if self.speed and self.speed.padding == "packed" and (self.model.family != "bert" or self.has_row_labels):
            raise ValueError("speed.padding: packed rows are for masked language models of the family bert")
        if self.data.sequence_length > self.model.max_position_embeddings:
            raise ValueError("data.sequence_length is longer than model.max_position_embeddings")
        return self


class SpecFile(Model):
    """RunSpec file, with its claimed digest."""

    schema_version: Literal[1] = 1
    digest: Sha256
    spec: RunSpec


def read_spec(path: Path) -> RunSpec:
    """Read the RunSpec in `path`; raise `InvalidInputError` if malformed or edited."""
    file = read_model(SpecFile, path)
    if file.spec.digest != file.digest:
        raise InvalidInputError(
            f"says {file.digest[:12]}, its content hashes to {file.spec.digest[:12]}",
            where=str(path),
            key="digest",
            hint="write it again with `plumbline spec`; a spec is never edited by hand",
        )
    return file.spec


def write_spec(spec: RunSpec, path: Path) -> None:
    """Write `spec` to a file, with its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(canonical_json(SpecFile(digest=spec.digest, spec=spec).to_json()))
