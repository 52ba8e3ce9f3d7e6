"""Expected machine of a platform, and its comparison with a fingerprint. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from plumbline.schema.base import Model
from plumbline.schema.fingerprint import Fingerprint

__all__ = ["Expected", "MachineMismatch", "machine_mismatches"]

CPU = "cpu"


class Expected(Model):
    """Device, number of processes and lock of a platform; empty values accept any."""

    accelerator: str = ""
    """`cpu`, or the GPU's whole name as its driver gives it, as in `NVIDIA A10G`."""
    gpus: int = Field(default=1, ge=1, le=64)
    """Processes on the machine, one for each GPU."""
    lock_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the environment's lock file."""


@dataclass(frozen=True, slots=True)
class MachineMismatch:
    """One property in which a machine differs from the suite."""

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
    if expected.accelerator and devices != {expected.accelerator}:
        devices_found = ", ".join(sorted(devices)) + ("" if used else f" ({fingerprint.cpu.model})")
        yield MachineMismatch("accelerator", devices_found, expected.accelerator)
    elif used and len(used) < expected.gpus:
        yield MachineMismatch("gpus", str(len(used)), str(expected.gpus))
    if fingerprint.num_processes != expected.gpus:
        yield MachineMismatch("gpus", f"{fingerprint.num_processes} processes", str(expected.gpus))
    if expected.lock_sha256 and fingerprint.lock_sha256 != expected.lock_sha256:
        yield MachineMismatch("lock", fingerprint.lock_sha256 or "no lock", expected.lock_sha256)
