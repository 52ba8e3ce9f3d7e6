"""Fingerprint: hardware, software and settings of a run; a source of suspects."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plumbline.schema.base import Model

__all__ = ["Cpu", "Fingerprint", "Gpu", "Scalar"]

Scalar = bool | int | float | str | None
_MANY = 10_000


class Gpu(Model):
    """One accelerator, as its driver names it."""

    name: str
    uuid: str
    memory_bytes: int = Field(ge=0)
    num_sms: int | None = None
    """Streaming multiprocessors; CUDA's own dropout masks depend on it."""
    compute_capability: str = ""
    pci: str = ""


class Cpu(Model):
    """Processor, and the instruction-set level that torch chose."""

    model: str
    isa: str
    """`torch.backends.cpu.get_cpu_capability()`: DEFAULT, AVX2, AVX512 ..."""
    num_cores: int = Field(ge=1)
    num_threads: int = Field(ge=1)
    """Number of torch's threads."""


class Fingerprint(Model):
    """Hardware, software and settings of one run, read on its machine."""

    schema_version: Literal[1] = 1
    hostname: str
    os: str
    python: str
    plumbline: str
    cpu: Cpu
    gpus: tuple[Gpu, ...] = Field(default=(), max_length=1024)
    driver: str = ""
    cuda: str = ""
    cudnn: str = ""
    nccl: str = ""
    num_processes: int = Field(default=1, ge=1)
    topology: dict[str, str] = Field(default={}, max_length=_MANY)
    """NCCL's algorithm, protocol and links, or gloo's; empty for one process."""
    packages: dict[str, str] = Field(default={}, max_length=_MANY)
    """Every installed distribution and its version."""
    numerics: dict[str, Scalar] = Field(default={}, max_length=_MANY)
    """Every precision and determinism setting, as read back from torch."""
    mantissa_bits: dict[str, int] = Field(default={}, max_length=_MANY)
    """Bits of mantissa that operands keep inside an operator, measured: `linear`, `matmul`, `softmax` ..."""
    environment: dict[str, str] = Field(default={}, max_length=_MANY)
    """The variables that can change numerics or speed (CUBLAS_*, NVIDIA_*, OMP_*, NCCL_* ...); no secrets."""
    container_image: str = ""
    lock_sha256: str = ""

    @property
    def hardware_class(self) -> str:
        """Return the class of machines with comparable speed: accelerators, else processor and cores.

        Threads and instruction set are settings: with fewer threads the machine is slower, not different.
        """
        if self.gpus:
            names = sorted(gpu.name for gpu in self.gpus)
            return f"{len(names)} x {names[0]}" if len(set(names)) == 1 else " + ".join(names)
        return f"{self.cpu.model}, {self.cpu.num_cores} cores"
