"""What a suite expects of the machine that trains, and where a fingerprint differs from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from plumbline.schema.base import Model
from plumbline.schema.fingerprint import Fingerprint

__all__ = ["Expected", "MachineMismatch", "machine_mismatches"]

CPU = "cpu"


class Expected(Model):
    """Device, number of processes and lock of one platform; an empty value accepts any."""

    accelerator: str = ""
    """`cpu`, or the GPU's whole name as its driver gives it, as in `NVIDIA A10G`."""
    gpus: int = Field(default=1, ge=1, le=64)
    """Processes on the machine, one for each GPU."""
    lock_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Of the lock file that the environment was built from."""


@dataclass(frozen=True, slots=True)
class MachineMismatch:
    """One thing that a machine should be and is not."""

    key: str
    """The suite's key: `accelerator`, `gpus` or `lock`."""
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.key}: found {self.found}, the suite says {self.expected}"


def machine_mismatches(expected: Expected, fingerprint: Fingerprint) -> tuple[MachineMismatch, ...]:
    """Return every difference between `expected` and the machine that `fingerprint` describes."""
    return tuple(_mismatches(expected, fingerprint))


def _mismatches(expected: Expected, fingerprint: Fingerprint) -> Iterator[MachineMismatch]:
    # Process N trains on GPU N: what else the machine holds does not matter.
    used = [gpu.name for gpu in fingerprint.gpus[: expected.gpus]]
    devices = set(used) or {CPU}
    if expected.accelerator and devices != {expected.accelerator}:
        found = ", ".join(sorted(devices)) + ("" if used else f" ({fingerprint.cpu.model})")
        yield MachineMismatch("accelerator", found, expected.accelerator)
    elif used and len(used) < expected.gpus:
        yield MachineMismatch("gpus", str(len(used)), str(expected.gpus))
    if fingerprint.num_processes != expected.gpus:
        yield MachineMismatch("gpus", f"{fingerprint.num_processes} processes", str(expected.gpus))
    if expected.lock_sha256 and fingerprint.lock_sha256 != expected.lock_sha256:
        yield MachineMismatch("lock", fingerprint.lock_sha256 or "no lock", expected.lock_sha256)
