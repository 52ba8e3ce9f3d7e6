"""From a suite's workload, a dataset and initial weights to the RunSpec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plumbline.data.publish import weights_key
from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.schema.base import first_problem
from plumbline.schema.manifest import Manifest
from plumbline.schema.spec import DataSpec, RunSpec
from plumbline.schema.suite import Suite, Workload

__all__ = ["SIZES", "architecture", "make_spec", "workload_named"]

SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""Layers and width of BERT, from Google's miniatures up; one head for each 64 of width."""

_HEAD_SIZE = 64
_POSITIONS = 512
_VOCAB_PADDING = 128
"""Checkpoints pad their vocabulary up to a multiple of this at most."""
_CHECKPOINT_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
    "vocab_size", "type_vocab_size", "hidden_act", "layer_norm_eps", "pad_token_id",
)  # fmt: skip
_MAX_CONFIG_BYTES = 1 << 20


def workload_named(suite: Suite, name: str, where: str = "") -> Workload:
    """The suite's workload of this name."""
    if name not in suite.workloads:
        mend = f"one of {', '.join(suite.workloads)}"
        raise ConfigurationError(f"there is no workload {name!r}", where=where or suite.name, mend=mend)
    return suite.workloads[name]


def architecture(workload: Workload, manifest: Manifest) -> dict[str, Any]:
    """The model without its weights, as `plumbline.launch.make_weights` takes it: a checkpoint's folder goes along."""
    if workload.model in SIZES:
        layers, width = SIZES[workload.model]
        model: dict[str, Any] = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // _HEAD_SIZE,
            "intermediate_size": 4 * width,
            "max_position_embeddings": max(_POSITIONS, workload.sequence_length),
            "vocab_size": manifest.vocab_size,
        }
    else:
        model = _checkpoint(Path(workload.model), manifest)
    labels = manifest.num_labels if workload.task == "sequence-classification" else None
    return {**model, "num_labels": labels, "task": workload.task}


def _checkpoint(folder: Path, manifest: Manifest) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        mend = f"{', '.join(SIZES)}, or the folder of a checkpoint in the Hugging Face format"
        raise ConfigurationError(
            "is neither a size nor a checkpoint's folder", where=str(folder), key="model", mend=mend
        )
    try:
        config = json.loads(path.read_bytes()[:_MAX_CONFIG_BYTES])
    except ValueError as error:
        raise InvalidInputError("not JSON", where=str(path)) from error
    if not isinstance(config, dict) or config.get("model_type") != "bert":
        raise ConfigurationError(
            "is no BERT", where=str(path), key="model_type", mend="only BERT checkpoints are trained"
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        # transformers accepts relative positions and silently trains without them.
        raise ConfigurationError("only `absolute` is trained", where=str(path), key="position_embedding_type")
    model = {key: config[key] for key in _CHECKPOINT_KEYS if config.get(key) is not None}
    size = model.get("vocab_size")
    if not isinstance(size, int) or not 0 <= size - manifest.vocab_size < _VOCAB_PADDING:
        raise InvalidInputError(
            f"is {size}, and the tokenizer of the dataset {manifest.name!r} has {manifest.vocab_size}",
            where=str(path),
            key="vocab_size",
            mend=f'build the dataset with tokenizer = "{folder}"',
        )
    return {**model, "checkpoint": str(folder)}


def make_spec(suite: Suite, workload: str, manifest: Manifest, weights_sha256: str) -> RunSpec:
    """The RunSpec of a workload, for this dataset and these initial weights."""
    chosen = workload_named(suite, workload)
    where = f"workloads.{workload}"
    if manifest.name != chosen.data:
        raise ConfigurationError(f"trains on {chosen.data!r}, not on {manifest.name!r}", where=where, key="data")
    if chosen.task == "sequence-classification" and manifest.num_labels is None:
        mend = "build it for sequence-classification"
        raise ConfigurationError(f"the dataset {manifest.name!r} has no labels", where=where, key="task", mend=mend)
    model = architecture(chosen, manifest)
    described = {key: value for key, value in model.items() if key not in {"task", "checkpoint"}}
    try:
        return RunSpec(
            workload=workload,
            task=chosen.task,
            model={**described, "weights_key": weights_key(weights_sha256), "weights_sha256": weights_sha256},
            data=DataSpec(name=manifest.name, manifest_sha256=manifest.digest, sequence_length=chosen.sequence_length),
            seed=chosen.seed,
            batch_size=chosen.batch_size,
            optimizer=chosen.optimizer,
            schedule=chosen.schedule,
            probe=chosen.probe,
            speed=chosen.speed,
            learn=chosen.learn,
        )
    except ValidationError as error:
        key, reason = first_problem(error)
        raise ConfigurationError(reason, where=where, key=key) from error
