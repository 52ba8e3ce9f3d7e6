"""Fingerprint differences that could explain a cause: suspects, never verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.rounding import ARITHMETIC, flat_fields, is_field_of
from plumbline.schema.verdict import CauseCode

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
    "precision": ARITHMETIC,
    "operator": ARITHMETIC,
    "kernel": ARITHMETIC,
    "loss": rf"{_MODEL}|packages\.numpy",
    "gradient": rf"{_MODEL}|num_processes|nccl|topology\..*|packages\.(accelerate|deepspeed)",
    "optimizer": rf"{_MODEL}|packages\.(bitsandbytes|apex)",
    "schedule": _MODEL,
    "evaluation": rf"{_MODEL}|packages\.(evaluate|scikit-learn|numpy)|num_processes",
    "nondeterminism": ARITHMETIC,
    "device": _MACHINE,
    "loader": rf"{_LOADER}|{_MACHINE}",
    "transfer": _MACHINE,
    "throttling": _MACHINE,
    "slow-device": _MACHINE,
    "contention": r"cpu\..*|num_processes|hostname|os|environment\.OMP.*",
    "software": ARITHMETIC,
    "environment": r".*",
    "unattributed": r".*",
}


def differences(reference: Fingerprint, candidate: Fingerprint) -> tuple[str, ...]:
    """Return each different field as `path: reference → candidate`."""
    left, right = flat_fields(reference), flat_fields(candidate)
    names = [*left, *(name for name in right if name not in left)]
    return tuple(
        f"{name}: {left.get(name, 'absent')} → {right.get(name, 'absent')}"
        for name in names
        if left.get(name) != right.get(name)
    )


def suspects_for(code: CauseCode, lines: Iterable[str]) -> tuple[str, ...]:
    """Return the differences that could explain a cause of this code."""
    pattern = re.compile(_EXPLAIN[code])
    return tuple(line for line in lines if is_field_of(pattern, line.partition(": ")[0]))


def explains_rounding(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the differences that explain different kernels, and so rounding."""
    return tuple(line for line in suspects_for("kernel", lines) if not _unmeasured(line))


def _unmeasured(line: str) -> bool:
    """Return whether one side did not measure the field, as experiments do."""
    name, _, values = line.partition(": ")
    return name.startswith(("mantissa_bits.", "numerics.")) and "absent" in values.split(" → ")
