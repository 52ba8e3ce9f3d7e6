"""Workloads at production settings: a strict probe, and `speed` and `learn` as teams train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from plumbline.schema.digest import digest_file
from plumbline.schema.spec import read_spec

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
_LEARN = {"evaluation_rows": 28, "expect": "chance"}
_LENGTH = 32
"""Room for one text; two are packed into a row of twice as many tokens."""
_CLIPPED = 0.1
"""Below the norm of the first gradients, so that clipping acts."""
_SHARPER = {
    "self.query.weight": 8.0, "self.key.weight": 8.0, "intermediate.dense.weight": 4.0, "pooler.dense.weight": 4.0,
}  # fmt: skip
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
    task, settings = PRODUCTION[workload]
    base = world.spec(task, seed)
    learn = {key: settings[key] for key in ("precision", "attention") if key in settings}
    return world.derived(
        f"production-{workload}", base, model=_sharper(world, read_spec(base).model.weights_key),
        optimizer={"max_grad_norm": _CLIPPED}, data={"sequence_length": (2 if workload == "packed" else 1) * _LENGTH},
        probe={"steps": 5, "portable_steps": 2}, speed={"steps": 10, **settings},
        learn={"steps": 48, "evaluate_every": 16, "checkpoint_every": 24, **_LEARN, **learn},
    )  # fmt: skip


def all_parts(world: World, precision: str, task: str = "cls") -> Path:
    """Write the RunSpec of all parts at a precision; the probe stays strict fp32."""
    every = {"steps": 10, "precision": precision}
    return world.derived(
        f"benign-{precision}" + "-packed" * (task == "mlm"), world.spec(task, 1),
        probe={"steps": 6, "portable_steps": 4}, speed={**every, "checks": True},
        learn={**every, "evaluate_every": 5, "checkpoint_every": 10, **_LEARN},
    )  # fmt: skip


def doors_spec(world: World) -> Path:
    """Write the RunSpec of the faults behind doors: `speed` and `learn` in bf16 on rows of many lengths."""
    learn = {"steps": 12, "evaluate_every": 6, "checkpoint_every": 12}
    return world.derived(
        "doors", all_parts(world, "bf16"), data={"sequence_length": 64}, speed={"steps": 16}, learn=learn
    )  # fmt: skip
