"""Fingerprint differences that could explain a cause: suspects, never verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.verdict import CauseCode

_ARITHMETIC = (
    r"cpu\.(model|isa|num_threads)|gpus|driver|cuda|cudnn|nccl|num_processes|topology\..*|numerics\..*|mantissa_bits\..*"
    r"|packages\.(torch|triton|pytorch-triton|numpy|transformers|mkl|intel-openmp|onednn|nvidia-.*|jax.*)"
    r"|environment\.(CUBLAS|CUDNN|NVIDIA|CUDA|NCCL|OMP|KMP|MKL|ATEN|ONEDNN|DNNL|TORCH|PYTORCH|OPENBLAS|GLIBC).*"
    r"|container_image|lock_sha256"
)
_MODEL = r"packages\.(transformers|torch|accelerate|peft)|container_image|lock_sha256"
_LOADER = (
    r"packages\.(datasets|pyarrow|pandas|fsspec|tokenizers|torch|numpy)|environment\.(OMP|HF_|TOKENIZERS).*|cpu\..*"
)
_MACHINE = r"cpu\..*|gpus|driver|cuda|os|container_image"

_EXPLAIN: dict[CauseCode, str] = {
    "data.content": r"packages\.(pyarrow|datasets|pandas|fsspec)|lock_sha256|container_image",
    "data.labels": r"packages\.(pyarrow|datasets|pandas)|lock_sha256|container_image",
    "data.order": r"packages\.(numpy|torch|datasets)|python|num_processes|environment\.PYTHONHASHSEED|lock_sha256",
    "tokenization": r"packages\.(tokenizers|transformers|sentencepiece)|lock_sha256|container_image",
    "model.architecture": _MODEL,
    "weights.init": rf"{_MODEL}|packages\.(safetensors|numpy)|cpu\.isa",
    "rng": r"packages\.(torch|numpy|transformers)|python|gpus|cuda|num_processes|lock_sha256|environment\.PYTHONHASH.*",
    "precision": _ARITHMETIC,
    "operator": _ARITHMETIC,
    "kernel": _ARITHMETIC,
    "loss": rf"{_MODEL}|packages\.numpy",
    "gradient": rf"{_MODEL}|num_processes|nccl|topology\..*|packages\.(accelerate|deepspeed)",
    "optimizer": rf"{_MODEL}|packages\.(bitsandbytes|apex)",
    "schedule": _MODEL,
    "evaluation": rf"{_MODEL}|packages\.(evaluate|scikit-learn|numpy)|num_processes",
    "nondeterminism": _ARITHMETIC,
    "device": _MACHINE,
    "loader": rf"{_LOADER}|{_MACHINE}",
    "transfer": _MACHINE,
    "throttling": _MACHINE,
    "slow-device": _MACHINE,
    "contention": r"cpu\..*|num_processes|hostname|os|environment\.OMP.*",
    "software": _ARITHMETIC,
    "environment": r".*",
    "unattributed": r".*",
}
_LAUNCH = (
    r"(TORCHELASTIC|TORCHX|OMPI)_\w+|TORCH_COMPILE_JOB_ID|NCCL_(COMM_ID|HOSTID|RAS_ADDR)"
    r"|(CUDA|NVIDIA)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NVIDIA_(IMEX_CHANNELS|MIG_(CONFIG|MONITOR)_DEVICES)"
    r"|TORCH_(HOME|D?TRACE|LOGS_OUT)|CUDA_MPS_(PIPE|LOG)_DIRECTORY|TORCH_(EXTENSIONS|COMPILE_DEBUG)_DIR|\w+_CACHE_(DIR|PATH)"
    r"|TORCHINDUCTOR_(REDIS_\w+|\w*LOG_?PATH|\w+_LOGGING_FILE)|CU\w+_(COREDUMP_FILE|LOG_FILE|LOGDEST_DBG)"
    r"|(NCCL|TORCH)_\w*(DEBUG|DUMP|TEMP|PIPE)_FILE"
    r"|\w+_SERVICE_(HOST|PORT)\w*|\w+_PORT(_\d+_(TCP|UDP)\w*)?"
    r"|NCCL_DEBUG(_SUBSYS)?|TORCH_LOGS|TORCH_(CPP|SHOW_CPP|DISTRIBUTED)_\w*(LOG_LEVEL|STACKTRACES|DEBUG)|MKL_VERBOSE"
    r"|(DNNL|ONEDNN)_VERBOSE|KMP_(BLOCKTIME|WARNINGS|SETTINGS)|PYTORCH_(CUDA_)?ALLOC_CONF|CUDA_(HOME|PATH)"
)
"""Variables that name a launch, a device, a host or a folder, write a log, or place memory and waits: the job's number,
which GPU it was given, where caches and logs lie, the addresses that Kubernetes adds. They differ from launch to launch
although the arithmetic is the same; their effect, such as the GPU's model, is recorded separately. A variable that may
choose a kernel, a library or a link is not among them, even where it holds a path: such a variable explains different
rounding."""

_NEVER = re.compile(rf"hostname|gpus\.\d+\.(uuid|pci)|environment\.({_LAUNCH})")


def differences(reference: Fingerprint, candidate: Fingerprint) -> tuple[str, ...]:
    """Return each different field as `path: reference → candidate`."""
    left, right = _flat(reference), _flat(candidate)
    names = [*left, *(name for name in right if name not in left)]
    return tuple(
        f"{name}: {left.get(name, 'absent')} → {right.get(name, 'absent')}"
        for name in names
        if left.get(name) != right.get(name)
    )


def suspects_for(code: CauseCode, lines: Iterable[str]) -> tuple[str, ...]:
    """Return the differences that could explain a cause of this code."""
    pattern = re.compile(_EXPLAIN[code])
    return tuple(line for line in lines if _may(pattern, line))


def explains_rounding(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the differences that explain different kernels, and so rounding."""
    return tuple(line for line in suspects_for("kernel", lines) if not _unmeasured(line))


def rounding_fields(fingerprint: Fingerprint) -> dict[str, str]:
    """Return the fields whose difference explains different rounding, by path."""
    pattern = re.compile(_EXPLAIN["kernel"])
    return {name: value for name, value in _flat(fingerprint).items() if _may(pattern, name)}


def _unmeasured(line: str) -> bool:
    """Return whether one side did not measure the field, as experiments do."""
    name, _, values = line.partition(": ")
    return name.startswith(("mantissa_bits.", "numerics.")) and "absent" in values.split(" → ")


def _may(pattern: re.Pattern[str], line: str) -> bool:
    name = line.partition(": ")[0]
    if _NEVER.fullmatch(name):
        return False
    return bool(pattern.fullmatch(name) or pattern.fullmatch(re.sub(r"\.\d+\..*", "", name)))


def _flat(fingerprint: Fingerprint) -> dict[str, str]:
    flat: dict[str, str] = {}

    def walk(path: str, value: object) -> None:
        if isinstance(value, dict):
            for key, item in sorted(value.items()):
                walk(f"{path}.{key}", item)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(f"{path}.{index}", item)
        else:
            flat[path] = str(value)

    for name, value in fingerprint.to_json().items():
        if name != "schema_version":
            walk(name, value)
    return flat
