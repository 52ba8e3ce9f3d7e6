"""Fingerprint differences that could explain a cause: hints, never verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.verdict import CauseCode

_ARITHMETIC = (
    r"cpu\.(model|isa|num_threads)|gpus|driver|cuda|cudnn|nccl|num_processes|topology\..*|numerics\..*|mantissa_bits\..*"
    r"|packages\.(torch|triton|pytorch-triton|transformers|mkl|intel-openmp|onednn|nvidia-.*)|environment\..*"
    r"|container_image|lock_sha256"
)
_MODEL = r"packages\.(transformers|torch|accelerate|peft)|container_image|lock_sha256"
_LOADER = (
    r"packages\.(datasets|pyarrow|pandas|fsspec|tokenizers|torch|numpy)|environment\.(OMP|HF_|TOKENIZERS).*|cpu\..*"
)
_MACHINE = r"cpu\..*|gpus|driver|cuda|os|container_image"

_EXPLAIN: Mapping[CauseCode, str] = {
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
}
"""Fields by the cause that they explain; any field may explain a cause that is not listed."""


def differences(reference: Fingerprint, candidate: Fingerprint) -> tuple[str, ...]:
    """Return each different fingerprint field as `path: reference → candidate`."""
    left, right = _flat(reference), _flat(candidate)
    names = [*left, *(name for name in right if name not in left)]
    return tuple(
        f"{name}: {left.get(name, 'absent')} → {right.get(name, 'absent')}"
        for name in names
        if left.get(name) != right.get(name)
    )


def suspects_for(code: CauseCode, lines: Iterable[str]) -> tuple[str, ...]:
    """Return the fingerprint differences that could explain this cause code."""
    pattern = re.compile(_EXPLAIN.get(code, ".*"))
    return tuple(line for line in lines if _matches(pattern, line.partition(": ")[0]))


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    if re.fullmatch(r"hostname|gpus\.\d+\.(uuid|pci)", name):
        return False
    return bool(pattern.fullmatch(name) or pattern.fullmatch(re.sub(r"\.\d+\..*", "", name)))


def _flat(fingerprint: Fingerprint) -> dict[str, str]:
    """Flatten a fingerprint to {path: value}, without operation digests."""
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
        if name not in ("schema_version", "operations"):
            walk(name, value)
    return flat
