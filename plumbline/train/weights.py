"""Initial weights, generated once per spec: `python -m plumbline.train.weights MODEL.json SEED OUT`.

Names and shapes come from the model, built on the meta device; values from NumPy's Philox, with a generator per
parameter name, so that they do not depend on torch's generator or the instruction set. MODEL.json contains a ModelSpec
without its weights, and may name a checkpoint's folder (`checkpoint`) whose tensors are used unchanged; parameters
missing in the checkpoint, such as a new classifier, come from the seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from plumbline.data.staging.order import random_keys
from plumbline.environments.loaded import write_loaded
from plumbline.schema.base import first_problem
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import ConfigurationError, InvalidInputError, PlumblineError
from plumbline.schema.spec import ModelSpec

_STANDARD_DEVIATION = 0.02
_RENAMED = (("_orig_mod.", ""), ("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Parts of tensors' names and what they are now: `torch.compile` wraps modules, old releases had other names."""
_UNMADE = {"weights_key": "unmade", "weights_sha256": "0" * 64}


def _normal(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Return normal random values by Box-Muller in fp64, rounded once to fp32."""
    count = int(np.prod(shape))
    raw = random_keys(2 * ((count + 1) // 2), "weights", seed, name) >> np.uint64(11)
    uniform = (raw.astype(np.float64) + 0.5) / 2**53
    radius = np.sqrt(-2 * np.log(uniform[0::2]))
    angle = 2 * np.pi * uniform[1::2]
    values = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]
    return (_STANDARD_DEVIATION * values).astype(np.float32).reshape(shape)


def _value(name: str, shape: tuple[int, ...], seed: int, owner: Any) -> NDArray[np.float32]:
    """Return the initial value of a parameter of module `owner`."""
    from plumbline.train.models.families import is_normalization

    if name.endswith("bias"):
        return np.zeros(shape, np.float32)
    if is_normalization(owner):
        return np.ones(shape, np.float32)
    values = _normal(name, shape, seed)
    padding = getattr(owner, "padding_idx", None)
    if padding is not None:
        values[padding] = 0
    return values


def _checkpoint_tensors(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Read a Hugging Face checkpoint's tensors as fp32, with current names."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.is_file() else []
    tensors: dict[str, NDArray[np.float32]] = {}
    for part in names or ["model.safetensors"]:
        path = folder / part
        if not path.is_file():
            hint = "save it with save_pretrained(folder), which writes safetensors"
            raise ConfigurationError("contains no model.safetensors", where=str(folder), hint=hint)
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a dict
                    name = reduce(lambda name, renamed: name.replace(*renamed), _RENAMED, key)
                    tensors[name] = file.get_tensor(key).float().numpy()
        except SafetensorError as error:
            raise InvalidInputError(f"not a safetensors file: {error}", where=str(path)) from error
    return tensors


def initial_weights(spec: ModelSpec, task: str, seed: int, checkpoint: Path | None = None) -> dict[str, NDArray[Any]]:
    """Return all parameters' initial values; tied parameters appear once."""
    from plumbline.train.models.families import check_map
    from plumbline.train.models.model import build_on_meta, named_once
    from plumbline.train.tasks import training_task

    model = build_on_meta(spec, task)
    training_task(task).check(model, spec.family)
    if spec.family != "bert":
        check_map(model, spec.family)
    shipped = _checkpoint_tensors(checkpoint) if checkpoint else {}
    prefix = f"{model.base_model_prefix}."
    weights: dict[str, NDArray[Any]] = {}
    for name, parameter in named_once(model).items():
        shape = tuple(parameter.shape)
        loaded = shipped.get(name, shipped.get(name.removeprefix(prefix)))
        if loaded is not None and loaded.shape != shape:
            raise InvalidInputError(
                f"is {loaded.shape} in the checkpoint, {shape} in the model", where=str(checkpoint), key=name
            )
        if loaded is None and checkpoint and name.startswith(prefix) and "pooler" not in name:
            text = "is missing in the checkpoint: only heads and poolers start from the seed"
            raise InvalidInputError(text, where=str(checkpoint), key=name)
        owner = model.get_submodule(name.rpartition(".")[0])
        weights[name] = loaded if loaded is not None else _value(name, shape, seed, owner)
    return weights


def make_weights(model: dict[str, Any], seed: int, out: Path) -> str:
    """Write the initial weights of `model` to `out`; return the file's SHA-256."""
    described = dict(model)
    task = described.pop("task", None) or (
        "sequence-classification" if described.get("num_labels") is not None else "masked-lm"
    )
    checkpoint = described.pop("checkpoint", None)
    try:
        spec = ModelSpec.model_validate({**described, **_UNMADE})
    except ValidationError as error:
        key, reason = first_problem(error)
        raise ConfigurationError(reason, where="the model's description", key=key) from error
    data = save(initial_weights(spec, task, seed, Path(checkpoint) if checkpoint else None))
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(out)
    return digest_bytes(data)


def main(argv: list[str] | None = None) -> int:
    """Write a file of initial weights, and print its digest."""
    parser = argparse.ArgumentParser(prog="python -m plumbline.train.weights", description="Make initial weights.")
    parser.add_argument(
        "model", type=Path, help="JSON of a ModelSpec without weights; may contain `checkpoint`, `task`"
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args(argv)
    try:
        sha256 = make_weights(json.loads(arguments.model.read_bytes()), arguments.seed, arguments.out)
    except PlumblineError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    finally:
        write_loaded(os.environ)
    sys.stdout.write(f"{sha256}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
