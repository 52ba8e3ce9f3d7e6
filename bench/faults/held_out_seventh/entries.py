"""Makers of the entries of the seventh and later sets, and the machines on which they run."""

from __future__ import annotations

from pathlib import Path

from bench.faults.catalogue import Entry

__all__ = ["AVX2", "NOISE", "PLAIN", "files", "inside", "second_process"]

_PACKAGE = "held_out_seventh"
_FAULTS = Path(__file__).resolve().parents[1]
_SITE = f"{_FAULTS / 'site'}:{_FAULTS.parents[1]}"
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2"}
PLAIN = {"ATEN_CPU_CAPABILITY": "default"}
NOISE = {"NCCL_IB_TIMEOUT": "22", "KMP_BLOCKTIME": "0", "CUDA_HOME": "/opt/cuda"}
"""Variables that change no bit."""


def inside(
    workload: str, family: str, expected: str, fault: str, environment: dict[str, str] | None = None, *,
    package: str = _PACKAGE,
) -> Entry:  # fmt: skip
    """Return an entry whose `fault`, `module.function`, is applied in the training process.

    `environment` may make the machine a different one.
    """
    name = fault.rpartition(".")[2]
    return Entry(
        name.replace("_", "-"), family, expected, inject=f"{package}.{fault}", workload=workload,
        environment=environment or {},
    )  # fmt: skip


def files(
    workload: str, expected: str, name: str, environment: dict[str, str] | None = None, *, package: str = _PACKAGE
) -> Entry:
    """Return an entry whose fault is in a copy of the dataset."""
    return Entry(
        name.replace("_", "-"), "data", expected, alter=f"{package}.inputs.{name}", workload=workload,
        environment=environment or {},
    )  # fmt: skip


def second_process(workload: str, expected: str, name: str, *, package: str = _PACKAGE) -> Entry:
    """Return an entry whose fault is in the second of two processes, which `sitecustomize` applies."""
    fault = f"{package}.ranks.{name}"
    return Entry(
        name.replace("_", "-"), "ranks", expected, inject=fault, workload=workload, setting="two processes",
        environment={"PLUMBLINE_FAULT": fault, "PYTHONPATH": _SITE},
    )  # fmt: skip
