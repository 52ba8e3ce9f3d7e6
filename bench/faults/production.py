"""Workloads at production settings: a strict probe, and `speed` and `learn` as teams train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from plumbline.schema.digest import digest_file
from plumbline.schema.spec import RunSpec, read_spec, write_spec

if TYPE_CHECKING:
    from bench.faults.world import World

_FOREACH = {"fused_optimizer": False, "foreach_optimizer": True}
PRODUCTION: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("cls", {"precision": "bf16"}),
    "fp16": ("cls", {"precision": "fp16", **_FOREACH}),
    "fp32": ("cls", {"precision": "fp32", "padding": "longest"}),
    "eager": ("cls", {"precision": "bf16", "attention": "eager", "padding": "longest", **_FOREACH}),
    "packed": ("mlm", {"precision": "bf16", "padding": "packed"}),
    "compiled": ("cls", {"precision": "bf16", "compile": True}),
}
"""By name: the task, and the settings of `speed`; `learn` has the same precision and attention."""
_EVALUATION_ROWS = 28
_LENGTH = 32
"""Room for one text; two are packed into a row of twice as many tokens."""
_CLIPPED = 0.1
"""Below the norm of the first gradients, so that clipping acts."""
_SHARPER = {
    "self.query.weight": 8.0,
    "self.key.weight": 8.0,
    "intermediate.dense.weight": 4.0,
    "pooler.dense.weight": 4.0,
}
"""Factors of weights: powers of two that give scores and activations the size of a trained model's."""


def _sharper(world: World, key: str) -> dict[str, str]:
    """Write the weights of `key` with the sizes of a trained model's, and return their keys of the spec."""
    folder = world.root / "data"
    tensors = load_file(folder / key)
    for name, value in tensors.items():
        value.mul_(next((factor for end, factor in _SHARPER.items() if name.endswith(end)), 1.0))
    draft = world.root / "sharper.part"
    save_file(tensors, draft)
    sha256 = digest_file(draft)
    name = f"weights/{sha256}.safetensors"
    draft.replace(folder / name)
    return {"weights_key": name, "weights_sha256": sha256}


def production_spec(world: World, workload: str, seed: int) -> Path:
    """Write the RunSpec of a workload: all parts, 10 measured steps, and a learning curve of one and a half epochs."""
    path = world.root / "specs" / f"production-{workload}-{seed}.json"
    if path.is_file():
        return path
    task, settings = PRODUCTION[workload]
    plain = read_spec(world.spec(task, seed)).to_json()
    learn = {key: settings[key] for key in ("precision", "attention") if key in settings}
    spec = RunSpec.model_validate({
        **plain, "workload": f"production-{workload}",
        "model": {**plain["model"], **_sharper(world, plain["model"]["weights_key"])},
        "optimizer": {**plain["optimizer"], "max_grad_norm": _CLIPPED},
        "data": {**plain["data"], "sequence_length": (2 if workload == "packed" else 1) * _LENGTH},
        "probe": {"steps": 5, "portable_steps": 2, "evaluation_rows": _EVALUATION_ROWS},
        "speed": {"steps": 10, **settings},
        "learn": {
            "steps": 48, "evaluate_every": 16, "checkpoint_every": 24, "evaluation_rows": _EVALUATION_ROWS,
            "expect": "chance", **learn,
        },
    })  # fmt: skip
    write_spec(spec, path)
    return path
