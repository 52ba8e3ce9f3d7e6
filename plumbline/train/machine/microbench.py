"""Microbenchmarks of training operations and hardware, to normalise throughput."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.spec import Precision, RunSpec
from plumbline.train.tasks import training_task

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
_MEBIBYTE = 1 << 20
_SECONDS = 0.15
_FEWEST = 5


def _median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a call."""
    wait: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _ in range(2):
        work()
    wait()
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < _FEWEST or time.perf_counter() - began < _SECONDS:
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _gemm(device: torch.device, dtype: torch.dtype) -> float:
    size = 8192 if device.type == "cuda" else 512
    # A matrix of ones needs less power than random numbers, and a power-limited GPU would be too fast.
    dice = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, dtype=dtype, device=device, generator=dice) for _ in range(2))
    out = torch.empty_like(left)
    return 2.0 * size**3 / _median_seconds(lambda: torch.mm(left, right, out=out), device)


def _copy(device: torch.device, size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return size / _median_seconds(lambda: target.copy_(source), device)


def _transfer(device: torch.device, size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8).pin_memory()
    target = torch.empty(size, dtype=torch.uint8, device=device)
    return size / _median_seconds(lambda: target.copy_(source, non_blocking=True), device)


def _disk_read(folder: Path, size: int) -> float | None:
    """Return the read rate of a fresh file, bypassing the page cache."""
    if sys.platform != "linux":  # macOS has no way to ask
        return None
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(os.urandom(_MEBIBYTE) * (size // _MEBIBYTE))
        file.flush()
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        while file.read(_MEBIBYTE):
            pass
        return size / (time.perf_counter() - start)


def microbenchmarks(device: torch.device, precision: Precision, folder: Path) -> dict[str, float]:
    """Measure rates of matmuls, memory copies and disk; takes a second."""
    host = torch.device("cpu")
    rates = {
        "gemm_flops": _gemm(device, _DTYPES.get(precision, torch.float32)),
        "host_gemm_flops": _gemm(host, torch.float32),
        "host_copy_bytes_per_second": _copy(host, 64 * _MEBIBYTE),
        "device_copy_bytes_per_second": _copy(device, (1024 if device.type == "cuda" else 64) * _MEBIBYTE),
    }
    if device.type == "cuda":
        rates["transfer_bytes_per_second"] = _transfer(device, 256 * _MEBIBYTE)
    disk = _disk_read(folder, 32 * _MEBIBYTE)
    if disk is not None:
        rates["disk_read_bytes_per_second"] = disk
    return rates


def step_flops(spec: RunSpec) -> float:
    """Return the FLOPs of one global batch: matmuls, forward and backward."""
    return flops_of(spec, np.full(spec.batch_size, spec.data.sequence_length))


def flops_of(spec: RunSpec, lengths: NDArray[np.int64]) -> float:
    """Return the FLOPs of rows with these token counts, without padding."""
    model, num_tokens = spec.model, float(lengths.sum())
    hidden, inner = model.hidden_size, model.intermediate_size
    gates = 1 if model.family == "modernbert" else 0
    projections = 4 * hidden * hidden + (2 + gates) * hidden * inner
    attention = 2.0 * hidden * float(np.square(lengths).sum())
    encoder = model.num_hidden_layers * (projections * num_tokens + attention)
    head_per_token, head_per_row = training_task(spec.task).head_products(model)
    return 6.0 * (encoder + head_per_token * num_tokens + head_per_row * len(lengths))
