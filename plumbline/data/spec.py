"""Construction of a RunSpec from a workload, a dataset and initial weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plumbline.data.pretrained import checkpoint_folder, checkpoint_model
from plumbline.data.publish import weights_key
from plumbline.data.tokenizer import tokenizer_file
from plumbline.digest import digest_file
from plumbline.errors import ConfigurationError
from plumbline.schema.base import first_problem
from plumbline.schema.manifest import Manifest
from plumbline.schema.spec import DataSpec, RunSpec
from plumbline.schema.suite import DatasetSource, Suite, Workload, Workloads
from plumbline.schema.suite_file import did_you_mean, suggest_or_list
from plumbline.schema.task import Task, has_row_labels

SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""Layers and width of BERT, from Google's miniatures up; one attention head per 64 of width."""

_HEAD_SIZE = 64
_POSITIONS = 512


def workload_named(suite: Suite | Workloads, name: str, where: str = "") -> Workload:
    """Return the suite's workload of this name."""
    if name not in suite.workloads:
        hint = suggest_or_list(name, list(suite.workloads))
        raise ConfigurationError(f"the workload {name!r} does not exist", where=where, hint=hint)
    return suite.workloads[name]


def architecture(workload: Workload, manifest: Manifest) -> dict[str, Any]:
    """Return the model without weights, for `plumbline.launch.make_weights`."""
    if workload.model in SIZES:
        layers, width = SIZES[workload.model]
        model: dict[str, Any] = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // _HEAD_SIZE,
            "intermediate_size": 4 * width,
            "max_position_embeddings": max(_POSITIONS, workload.sequence_length),
            "vocab_size": manifest.vocab_size,
            **({"pad_token_id": manifest.pad_token_id} if manifest.pad_token_id else {}),
        }
    else:
        folder = checkpoint_folder(workload.model, SIZES) or Path(workload.model)
        model = checkpoint_model(folder, manifest)
    labels = manifest.num_labels if has_row_labels(workload.task) else None
    return {**model, "num_labels": labels, "task": workload.task}


def dataset_task(suite: Suite | Workloads, name: str) -> Task:
    """Return a dataset's task: labelled, if any workload needs labels."""
    tasks = sorted({workload.task for workload in suite.workloads.values() if workload.data == name})
    return next(filter(has_row_labels, tasks), tasks[0] if tasks else "sequence-classification")


def dataset_source(suite: Suite | Workloads, name: str, where: str = "") -> DatasetSource:
    """Return a dataset's source, with the tokenizer of its checkpoint, if any."""
    if name not in suite.datasets:
        known = did_you_mean(name, suite.datasets)
        hint = known or f"add [datasets.{name}], or give --data FOLDER"
        raise ConfigurationError("the dataset has no source", where=where, key=f"datasets.{name}", hint=hint)
    source = suite.datasets[name]
    users = {key: workload.model for key, workload in suite.workloads.items() if workload.data == name}
    folders = {key: checkpoint_folder(model, SIZES) for key, model in users.items()}
    brought = {key: folder for key, folder in folders.items() if folder is not None}
    if source.tokenizer is not None or not brought:
        return source
    files = [tokenizer_file(folder) for folder in brought.values()]
    tokenizers = {digest_file(file) for file in files if file.is_file()}
    if len(tokenizers) > 1 or len(brought) < len(folders):
        text = f"the workloads {', '.join(users)} need different tokenizers"
        hint = "give each its own [datasets.NAME]; several datasets may have the same path"
        raise ConfigurationError(text, where=where, key=f"datasets.{name}", hint=hint)
    return source.replace(tokenizer=str(next(iter(brought.values()))))


def make_spec(suite: Suite | Workloads, workload: str, manifest: Manifest, weights_sha256: str) -> RunSpec:
    """Return the RunSpec of a workload, for this dataset and these weights."""
    chosen = workload_named(suite, workload)
    where = f"workloads.{workload}"
    if manifest.name != chosen.data:
        raise ConfigurationError(f"trains on {chosen.data!r}, not on {manifest.name!r}", where=where, key="data")
    if has_row_labels(chosen.task) and manifest.num_labels is None:
        hint = f"build it for {chosen.task}"
        raise ConfigurationError(f"the dataset {manifest.name!r} has no labels", where=where, key="task", hint=hint)
    model = architecture(chosen, manifest)
    described = {key: value for key, value in model.items() if key not in {"task", "checkpoint"}}
    try:
        return RunSpec(
            workload=workload,
            task=chosen.task,
            model={**described, "weights_key": weights_key(weights_sha256), "weights_sha256": weights_sha256},
            data=DataSpec(
                name=manifest.name,
                manifest_sha256=manifest.digest,
                sequence_length=chosen.sequence_length,
                class_names=tuple(entry.name for entry in manifest.classes),
            ),
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
