"""Torch settings for precision, determinism and random generators: set, verify, restore."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.base import Scalar
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.spec import SDPA_KERNELS, Precision, SpeedSpec
from plumbline.schema.variables import variable
from plumbline.train.compat.torch import (
    UNSTATED,
    read_fp32_precision,
    read_reductions,
    set_fp32_precision,
    set_reductions,
)
from plumbline.train.failure import TrainingFailedError

_SDP: tuple[str, ...] = SDPA_KERNELS
_REPEATABLE_SDP = ("flash", "mem_efficient", "math")
"""Attention kernels under strict determinism: torch makes their backward repeatable if deterministic algorithms are set
and not only warned of (torch, aten/src/ATen/native/transformers/cuda/attention_backward.cu)."""

_WORD = "<I"


def _set(precision: Precision, speed: SpeedSpec | None) -> dict[str, Scalar]:
    """Apply and return all settings; strictly deterministic without `speed`."""
    strict, on_gpu = speed is None, torch.cuda.is_available()
    kernels: tuple[str, ...] = _REPEATABLE_SDP if speed is None else speed.sdpa_kernels
    benchmark = speed is not None and on_gpu and speed.cudnn_benchmark
    wanted = set_fp32_precision(tf32=precision == "tf32" or (speed is not None and speed.tf32))
    # A CPU has no such sums: its records would show a difference that changes nothing.
    wanted |= set_reductions(narrow=speed is not None and on_gpu and speed.reduced_precision_reduction)
    torch.use_deterministic_algorithms(strict, warn_only=False)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
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
        "deterministic_fill": False,
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
    """Return every setting that torch reports."""
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
    """Apply a training part's settings; raise `TrainingFailedError` if one has no effect.

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
def fresh_memory_filled() -> Iterator[None]:
    """Fill new memory with NaN, to expose operations that read uninitialised values.

    A step of BERT fills some 260 tensors: one step shows the fault, and the others need not pay for it.
    """
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = False


@contextlib.contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Return an autocast context if `precision` needs one."""
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if lower is None:
        yield
        return
    with torch.autocast(device.type, dtype=lower):
        yield


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what libraries draw from
    torch.manual_seed(seed)


def _words(values: Any) -> bytes:
    return np.asarray(values, dtype="<u4").tobytes()


def read_states() -> dict[str, bytes]:
    """Return each random generator's state in a defined byte order."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - libraries draw from the global generator
    states = {
        "python": struct.pack(f"<{len(internal) + 1}I?d", version, *internal, gauss is not None, gauss or 0.0),
        "numpy": str(name).encode() + _words(keys) + struct.pack("<IId", position, has_gauss, cached),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_available():
        states["cuda:0"] = torch.cuda.get_rng_state().numpy().tobytes()
    return states


def digest_states(states: dict[str, bytes]) -> dict[str, str]:
    """Return the digest of each random generator's state."""
    return {name: digest_bytes(state) for name, state in states.items()}


def pack_states(states: dict[str, bytes]) -> NDArray[np.uint8]:
    """Pack all random generator states into a single array."""
    packed = b"".join(
        struct.pack(_WORD, len(name)) + struct.pack(_WORD, len(state)) + name.encode() + state
        for name, state in sorted(states.items())
    )
    return np.frombuffer(packed, dtype=np.uint8)


def _unpack(packed: NDArray[np.uint8]) -> dict[str, bytes]:
    data, at, states = packed.tobytes(), 0, {}
    while at < len(data):
        if at + 8 > len(data):
            raise InvalidInputError("is truncated", where="rng state")
        name_length, state_length = struct.unpack_from("<II", data, at)
        at += 8
        end = at + name_length + state_length
        if end > len(data):
            raise InvalidInputError("is truncated", where="rng state")
        states[data[at : at + name_length].decode(errors="replace")] = data[at + name_length : end]
        at = end
    return states


def _restore_python(state: bytes) -> None:
    numbers = np.frombuffer(state[:-9], dtype="<u4").tolist()
    has_gauss, gauss = struct.unpack("<?d", state[-9:])
    random.setstate((numbers[0], tuple(numbers[1:]), gauss if has_gauss else None))


def _restore_numpy(state: bytes) -> None:
    position, has_gauss, cached = struct.unpack("<IId", state[-16:])
    keys = np.frombuffer(state[7:-16], dtype="<u4")
    np.random.set_state((state[:7].decode(), keys, position, has_gauss, cached))  # noqa: NPY002 - as above


def restore_states(packed: NDArray[np.uint8]) -> None:
    """Restore the states of all random generators on this machine."""
    states = _unpack(packed)
    try:
        if "python" in states:
            _restore_python(states["python"])
        if "numpy" in states:
            _restore_numpy(states["numpy"])
        if "torch" in states:
            torch.set_rng_state(torch.from_numpy(np.frombuffer(states["torch"], dtype=np.uint8).copy()))
        if "cuda:0" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(np.frombuffer(states["cuda:0"], dtype=np.uint8).copy()))
    except (ValueError, TypeError, struct.error, RuntimeError, IndexError) as error:
        raise InvalidInputError(f"cannot be restored: {error}", where="rng state") from error
