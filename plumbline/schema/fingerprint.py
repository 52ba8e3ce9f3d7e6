"""Fingerprint: hardware, software and settings of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from plumbline.schema.base import Count, Label, Model, Scalar, Text
from plumbline.schema.evidence import NativeOperation
from plumbline.schema.suite_file import with_tuples

_MANY = 10_000
_MAX_CHARACTERS = 1 << 18
"""Maximum length of all tables together; 500 packages and 50 variables have 20,000 characters.

Differences of fingerprints are suspects of causes, several times in a round's verdict.
"""


class Machine(Model):
    """Machine type, with an image suitable for training."""

    cloud: Literal["aws", "azure", "gcp"]
    type: str = Field(min_length=1)
    gpu: str = Field(min_length=1)
    """The GPU's name, as its driver reports it."""
    image: str = Field(min_length=1)
    """Exact image, with its date."""
    driver: str = Field(pattern=r"^\d+(\.\d+)*$")
    """The image's NVIDIA driver, or at least its branch."""
    python: str = Field(pattern=r"^3\.\d+$")
    cuda: str = Field(pattern=r"^\d+$")
    """Major version of the CUDA runtime that trains there."""
    price_per_hour: float = Field(gt=0)
    """USD."""
    source: str = Field(min_length=1)
    """Origin of these values, and which of them are not verified."""


class StorePrice(Model):
    """Prices of one cloud's object store, in USD per GiB."""

    month: float = Field(ge=0)
    """Storage for a month."""
    egress: float = Field(ge=0)
    """Transfer out of the cloud."""


class MachineTable(Model):
    """Table of machine types, GPU families, and store prices by scheme."""

    families: dict[str, tuple[str, ...]]
    stores: dict[str, StorePrice]
    machines: tuple[Machine, ...]


@cache
def machine_table() -> MachineTable:
    """Return the table of machines in this installation."""
    text = resources.files(__package__).joinpath("machines.toml").read_text(encoding="utf-8")
    import tomllib  # of Python 3.11

    return MachineTable.model_validate(with_tuples(tomllib.loads(text)))


def accelerator_names(accelerator: str) -> tuple[str, ...]:
    """Return the GPU names that `accelerator` accepts: itself, or its family."""
    return machine_table().families.get(accelerator, (accelerator,))


_CLOUDS = {"s3": "aws", "az": "azure", "gs": "gcp"}


def machine_of(store_scheme: str, accelerator: str) -> Machine | None:
    """Return the cheapest machine with this accelerator, or `None`."""
    names, cloud = accelerator_names(accelerator), _CLOUDS.get(store_scheme)
    fitting = [row for row in machine_table().machines if row.cloud == cloud and row.gpu in names]
    return min(fitting, key=lambda row: row.price_per_hour, default=None)


def accelerator_text(accelerator: str, names: tuple[str, ...]) -> str:
    """Format `accelerator` for a message, with all accepted names."""
    return accelerator if names == (accelerator,) else f"{accelerator} ({' or '.join(names)})"


class Gpu(Model):
    """One GPU, as its driver names it."""

    name: Label
    uuid: Label
    memory_bytes: Count
    num_sms: Count | None = None
    """Streaming multiprocessors; CUDA's own dropout masks depend on it."""
    compute_capability: Label = ""
    pci: Label = ""


class Cpu(Model):
    """Processor, and the instruction set that torch chose."""

    model: Label
    isa: Label
    """`torch.backends.cpu.get_cpu_capability()`: DEFAULT, AVX2, AVX512 ..."""
    num_cores: int = Field(ge=1, le=1 << 20)
    num_threads: int = Field(ge=1, le=1 << 20)
    """Number of torch's threads."""


class Fingerprint(Model):
    """Hardware, software and settings of one run, read on its machine."""

    schema_version: Literal[1] = 1
    hostname: Label
    os: Label
    python: Label
    plumbline: Label
    cpu: Cpu
    gpus: tuple[Gpu, ...] = Field(default=(), max_length=1024, fail_fast=True)
    driver: Label = ""
    cuda: Label = ""
    cudnn: Label = ""
    nccl: Label = ""
    num_processes: int = Field(default=1, ge=1, le=1 << 20)
    topology: dict[Label, Text] = Field(default={}, max_length=_MANY)
    """NCCL's algorithm, protocol and links, or gloo's; empty for one process."""
    packages: dict[Label, Label] = Field(default={}, max_length=_MANY)
    """Every installed distribution and its version."""
    numerics: dict[Label, Scalar] = Field(default={}, max_length=_MANY)
    """Every precision and determinism setting, as read back from torch."""
    mantissa_bits: dict[Label, Count] = Field(default={}, max_length=_MANY)
    """Bits of mantissa that operands keep inside an operator, measured in the settings of a part: `linear`, `matmul`,
    `softmax` ... of the probe, `speed.linear`, `learn.linear` ... of the others."""
    operations: dict[Label, Annotated[tuple[NativeOperation, ...], Field(max_length=1000)]] = Field(
        default={}, max_length=16
    )
    """For each part (`probe`, `speed`, `learn`), how this machine rounds native operations in the part's settings."""
    environment: dict[Label, Annotated[str, Field(max_length=_MAX_CHARACTERS)]] = Field(default={}, max_length=_MANY)
    """The variables that can change numerics or speed (CUBLAS_*, NVIDIA_*, OMP_*, NCCL_* ...); no secrets."""
    container_image: Label = ""
    lock_sha256: Label = ""

    @model_validator(mode="after")
    def _is_short(self) -> Self:
        tables = (self.topology, self.packages, self.numerics, self.environment)
        if sum(len(key) + len(str(value)) for table in tables for key, value in table.items()) > _MAX_CHARACTERS:
            raise ValueError(f"the tables have more than {_MAX_CHARACTERS} characters together")
        return self

    @property
    def hardware_class(self) -> str:
        """Return the hardware class (comparable speed): accelerators, else processor and cores.

        Threads and instruction set are settings: with fewer threads the machine is slower, not different.
        """
        if self.gpus:
            names = sorted(gpu.name for gpu in self.gpus)
            return f"{len(names)} x {names[0]}" if len(set(names)) == 1 else " + ".join(names)
        return f"{self.cpu.model}, {self.cpu.num_cores} cores"


CPU = "cpu"


class Expected(Model):
    """Expected device, number of processes and lock; empty values accept any."""

    accelerator: str = ""
    """`cpu`, the GPU's whole name as its driver gives it, as in `NVIDIA A10G`, or a family of `machines.toml`."""
    gpus: int = Field(default=1, ge=1, le=64)
    """Processes on each machine, one for each GPU."""
    nodes: int = Field(default=1, ge=1, le=64)
    """Machines of one training."""
    lock_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the environment's lock file."""
    accelerator_names: tuple[str, ...] = Field(default=(), max_length=1000)
    """Names of GPUs that `accelerator` accepts, for a trainer whose Python cannot read the table of machines."""

    @property
    def num_processes(self) -> int:
        """Return a training's number of processes, over all machines."""
        return self.gpus * self.nodes

    def with_names(self) -> Expected:
        """Add the GPU names that `accelerator` accepts in this installation."""
        return self.replace(accelerator_names=accelerator_names(self.accelerator))


@dataclass(frozen=True, slots=True)
class MachineMismatch:
    """One difference between a machine and the suite's expectations."""

    key: str
    """The suite's key: `accelerator`, `gpus` or `lock`."""
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.key}: found {self.found}, the suite requires {self.expected}"


def machine_mismatches(expected: Expected, fingerprint: Fingerprint) -> tuple[MachineMismatch, ...]:
    """Return every difference of `fingerprint` from `expected`."""
    return tuple(_mismatches(expected, fingerprint))


def _mismatches(expected: Expected, fingerprint: Fingerprint) -> Iterator[MachineMismatch]:
    # Process N trains on GPU N: further GPUs do not matter.
    used = [gpu.name for gpu in fingerprint.gpus[: expected.gpus]]
    devices = set(used) or {CPU}
    accepted = expected.accelerator_names or accelerator_names(expected.accelerator)
    if expected.accelerator and (len(devices) > 1 or not devices <= set(accepted)):
        devices_found = ", ".join(sorted(devices)) + ("" if used else f" ({fingerprint.cpu.model})")
        yield MachineMismatch("accelerator", devices_found, accelerator_text(expected.accelerator, accepted))
    elif used and len(used) < expected.gpus:
        yield MachineMismatch("gpus", str(len(used)), str(expected.gpus))
    if fingerprint.num_processes != expected.num_processes:
        yield MachineMismatch("gpus", f"{fingerprint.num_processes} processes", str(expected.num_processes))
    if expected.lock_sha256 and fingerprint.lock_sha256 != expected.lock_sha256:
        yield MachineMismatch("lock", fingerprint.lock_sha256 or "no lock", expected.lock_sha256)
