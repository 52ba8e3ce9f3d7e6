"""Precision and determinism settings of torch: set, read back and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from plumbline.schema.base import Scalar
from plumbline.schema.spec import SDPA_KERNELS, Precision, SpeedSpec
from plumbline.train.compat.torch import (
    UNSTATED,
    read_fp32_precision,
    read_reductions,
    set_fp32_precision,
    set_reductions,
)
from plumbline.train.failure import TrainingFailedError
from plumbline.variables import variable

_SDP: tuple[str, ...] = SDPA_KERNELS
_REPEATABLE_SDP = ("flash", "mem_efficient", "math")
"""Attention kernels under strict determinism: torch makes their backward repeatable if deterministic algorithms are set
and not only warned of (torch, aten/src/ATen/native/transformers/cuda/attention_backward.cu)."""


def _set(precision: Precision, speed: SpeedSpec | None) -> dict[str, Scalar]:
    """Set everything; return the value that each setting must have afterwards. Without `speed`, be strict."""
    strict, on_gpu = speed is None, torch.cuda.is_available()
    kernels: tuple[str, ...] = _REPEATABLE_SDP if speed is None else speed.sdpa_kernels
    benchmark = speed is not None and on_gpu and speed.cudnn_benchmark
    wanted = set_fp32_precision(tf32=precision == "tf32" or (speed is not None and speed.tf32))
    # A CPU has no such sums: its records would show a difference that changes nothing.
    wanted |= set_reductions(narrow=speed is not None and on_gpu and speed.reduced_precision_reduction)
    torch.use_deterministic_algorithms(strict, warn_only=False)
    torch.backends.cudnn.deterministic = strict
    torch.backends.cudnn.benchmark = benchmark
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    for name in _SDP:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in kernels)
    return wanted | {
        **{f"sdp.{name}": name in kernels for name in _SDP},
        "deterministic_algorithms": strict,
        "deterministic_warn_only": False,
        "cudnn.deterministic": strict,
        "cudnn.benchmark": benchmark,
        "default_dtype": "torch.float32",
        "flush_denormal": False,
        "autocast.cpu": False,
        "autocast.cuda": False,
    }


def _denormals_are_flushed() -> bool:
    return bool((torch.tensor(2.0**-149) * 1.0).item() == 0)


def read_settings() -> dict[str, Scalar]:
    """Return every setting as torch reports it."""
    settings = read_fp32_precision() | read_reductions()
    if UNSTATED:
        settings["unstated"] = " ".join(UNSTATED)  # an absent setting decides nothing in the judge
    for name in _SDP:
        settings[f"sdp.{name}"] = getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
    for name, read in (
        ("float32_matmul_precision", torch.get_float32_matmul_precision),
        ("cuda.matmul.allow_tf32", lambda: torch.backends.cuda.matmul.allow_tf32),
        ("cudnn.allow_tf32", lambda: torch.backends.cudnn.allow_tf32),
    ):
        try:
            settings[name] = read()
        except RuntimeError:
            settings[name] = "mixed"  # torch raises if it finds the settings contradictory
    return settings | {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "deterministic_fill": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "mkldnn.enabled": torch.backends.mkldnn.enabled,
        "default_dtype": str(torch.get_default_dtype()),
        "flush_denormal": _denormals_are_flushed(),
        "autocast.cpu": torch.is_autocast_enabled("cpu"),
        "autocast.cuda": torch.is_autocast_enabled("cuda"),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "PYTHONHASHSEED": variable("PYTHONHASHSEED") or None,
        "CUBLAS_WORKSPACE_CONFIG": variable("CUBLAS_WORKSPACE_CONFIG") or None,
    }


def apply_settings(
    precision: Precision, *, strict: bool, part: str, speed: SpeedSpec | None = None
) -> dict[str, Scalar]:
    """Set a part's settings; raise `TrainingFailedError` if one does not take effect.

    Settings that are not strict are those of `speed`, or torch's own defaults.
    """
    wanted = _set(precision, None if strict else speed or SpeedSpec())
    settings = read_settings()
    for name, value in wanted.items():
        if settings[name] != value:
            raise TrainingFailedError(
                f"reads {settings[name]!r} after being set to {value!r}", code="setting", part=part, key=name
            )
    if strict and torch.cuda.is_available() and variable("CUBLAS_WORKSPACE_CONFIG") not in {":4096:8", ":16:8"}:
        hint = "start the training with `plumbline train`, which sets it to :4096:8"
        raise TrainingFailedError(
            "is not set, so cuBLAS is not deterministic",
            code="setting",
            part=part,
            key="CUBLAS_WORKSPACE_CONFIG",
            hint=hint,
        )
    return settings


@contextlib.contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Enable mixed precision if `precision` requires it."""
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if lower is None:
        yield
        return
    with torch.autocast(device.type, dtype=lower):
        yield


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what libraries draw from
    torch.manual_seed(seed)
