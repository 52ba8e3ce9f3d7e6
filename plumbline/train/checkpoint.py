"""Checkpoints of the learning run, to resume with the same bits."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from plumbline.schema.digest import digest_file
from plumbline.train.engine import Engine
from plumbline.train.failure import writing
from plumbline.train.numerics import pack_states, read_states, restore_states

FOLDER = "checkpoint"


@dataclass
class Progress:
    """Step and results so far of the learning run."""

    step: int = 0
    log: dict[str, Any] = field(default_factory=dict)
    """Columns of the step log."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)
    evaluated: list[tuple[str, str]] = field(default_factory=list)
    recounted: list[tuple[float | None, float | None]] = field(default_factory=list)
    portable: dict[str, Any] = field(default_factory=dict)
    proofs: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    """Digests of the state at `step`, before it was saved."""
    resumed_wrongly: list[str] = field(default_factory=list)


def save_checkpoint(folder: Path, engine: Engine, progress: Progress, identity: str) -> None:
    """Write a checkpoint atomically, so that a complete one always exists."""
    with writing(folder.parent):
        _save(folder, engine, progress, identity)


def _save(folder: Path, engine: Engine, progress: Progress, identity: str) -> None:
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tensors = {f"model/{name}": value.detach() for name, value in engine.bare.named_parameters()}
    tensors |= {f"optimizer/{place}": entry.detach() for place, entry in read_moments(engine).items()}
    tensors["rng"] = torch.from_numpy(pack_states(read_states()).copy())
    copies = {name: value.to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    save_file(copies, part / "tensors.safetensors")
    state = {
        "identity": identity,
        "schedule_epoch": engine.schedule.last_epoch,
        "scaler": engine.scaler.state_dict() if engine.scaler else None,
        "progress": vars(progress),
        "tensors_sha256": digest_file(part / "tensors.safetensors"),
    }
    (part / "state.json").write_text(json.dumps(state), encoding="utf-8")
    for path in part.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _read(folder: Path, identity: str) -> dict[str, Any] | None:
    """Read a checkpoint; return `None` if incomplete or from a different training."""
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
        whole = state["tensors_sha256"] == digest_file(folder / "tensors.safetensors")
    except (OSError, ValueError, KeyError):
        return None
    return state if whole and state.get("identity") == identity else None


def _fill(engine: Engine, state: dict[str, Any], path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
    with torch.no_grad():
        for name, value in engine.bare.named_parameters():
            value.copy_(tensors[f"model/{name}"])
    parameters = dict(engine.bare.named_parameters())
    for place, entry in tensors.items():
        if place.startswith("optimizer/"):
            _, name, key = place.split("/")
            value = parameters[name]
            # The step count stays on the host: this part never uses a fused optimizer.
            engine.optimizer.state[value][key] = entry if key == "step" else entry.to(value.device)
    for _ in range(state["schedule_epoch"]):
        engine.advance()
    if engine.scaler:
        engine.scaler.load_state_dict(state["scaler"])
    restore_states(tensors["rng"].numpy().astype(np.uint8))


def load_checkpoint(folder: Path, engine: Engine, identity: str) -> Progress | None:
    """Resume from the newest complete checkpoint, if any."""
    for candidate in (folder, folder.with_name(f"{folder.name}.old")):
        state = _read(candidate, identity)
        if state is None:
            continue
        try:
            _fill(engine, state, candidate / "tensors.safetensors")
        except (SafetensorError, KeyError):
            continue
        return Progress(**state["progress"])
    return None


def drop_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of `folder`."""
    for name in (folder.name, f"{folder.name}.part", f"{folder.name}.old"):
        shutil.rmtree(folder.with_name(name), ignore_errors=True)


def read_moments(engine: Engine) -> dict[str, torch.Tensor]:
    """Return the optimizer's state tensors by `{parameter}/{key}`, in stable order."""
    state = engine.optimizer.state
    return {
        f"{name}/{key}": entry
        for name, value in engine.bare.named_parameters()
        for key, entry in sorted((state.get(value) or {}).items())
        if isinstance(entry, torch.Tensor)
    }
