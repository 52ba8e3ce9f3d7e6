"""Fields of a fingerprint whose difference explains different rounding."""

from __future__ import annotations

import re

from plumbline.schema.fingerprint import Fingerprint

ARITHMETIC = (
    r"cpu\.(model|isa|num_threads)|gpus|driver|cuda|cudnn|nccl|num_processes|topology\..*|numerics\..*|mantissa_bits\..*"
    r"|packages\.(torch|triton|pytorch-triton|numpy|transformers|mkl|intel-openmp|onednn|nvidia-.*|jax.*)"
    r"|environment\.(CUBLAS|CUDNN|NVIDIA|CUDA|NCCL|OMP|KMP|MKL|ATEN|ONEDNN|DNNL|TORCH|PYTORCH|OPENBLAS|GLIBC).*"
    r"|container_image|lock_sha256"
)
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


def rounding_fields(fingerprint: Fingerprint) -> dict[str, str]:
    """Return the fields whose difference explains different rounding, by path."""
    pattern = re.compile(ARITHMETIC)
    return {name: value for name, value in flat_fields(fingerprint).items() if is_field_of(pattern, name)}


def is_field_of(pattern: re.Pattern[str], name: str) -> bool:
    """Return whether a field matches, and may change a training at all."""
    if _NEVER.fullmatch(name):
        return False
    return bool(pattern.fullmatch(name) or pattern.fullmatch(re.sub(r"\.\d+\..*", "", name)))


def flat_fields(fingerprint: Fingerprint) -> dict[str, str]:
    """Return every field of a fingerprint by path."""
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
