"""Construction of a RunSpec from workload, dataset, and weights or checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plumbline.data.datasets.hub import quiet_hub, reachable_commit
from plumbline.data.datasets.publish import weights_key
from plumbline.data.datasets.tokenizer import read_tokenizer, tokenizer_file
from plumbline.schema.base import first_problem
from plumbline.schema.command import CommandWorkload
from plumbline.schema.digest import digest_bytes, digest_file
from plumbline.schema.errors import ConfigurationError, InvalidInputError, UnavailableError
from plumbline.schema.manifest import Manifest
from plumbline.schema.spec import DataSpec, RunSpec
from plumbline.schema.suite import DatasetSource, Suite, Workload, Workloads
from plumbline.schema.suite_file import did_you_mean, suggest_or_list
from plumbline.schema.task import Task, built_in_family, has_row_labels

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

_HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)@(?P<revision>[\w./-]+)")
_FILES = (
    "config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json", "*.safetensors",
    "model.safetensors.index.json",
)  # fmt: skip
_VOCAB_PADDING = 128
"""Maximum padding multiple of a checkpoint's vocabulary."""
_MAX_CONFIG_BYTES = 1 << 20

_KEYS = {
    "hidden_size": ("hidden_size", "dim", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "hidden_dim", "n_inner"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "vocab_size": ("vocab_size",),
}
"""Required keys of the spec, with each family's names."""
_OPTIONAL = {
    "type_vocab_size": ("type_vocab_size",),
    "hidden_act": ("hidden_act", "activation", "hidden_activation", "activation_function"),
    "layer_norm_eps": ("layer_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "pad_token_id": ("pad_token_id",),
}
_OFFSET_POSITIONS = {"roberta", "camembert", "xlm-roberta", "xlm-roberta-xl"}
"""Families whose positions start at the padding token's number, which leaves fewer for a text."""
_IGNORED = re.compile(
    r"architectures|auto_map|d?type|dtype|torch_dtype|transformers_version|_.*|name_or_path|(id2label|label2id)|num_labels"
    r"|problem_type|use_cache|output_.*|return_dict|finetuning_task|gradient_checkpointing|.*dropout.*|.*pdrop|model_type"
    r"|reference_compile|repad_logits_with_grad"
)
"""Keys of a `config.json` that do not change a layer's result, or that the spec sets itself."""


def checkpoint_folder(model: str, sizes: Mapping[str, Any]) -> Path | None:
    """Return a checkpoint's folder, downloading from the Hub if needed. `None` for a built-in size."""
    if model in sizes:
        return None
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    named = _HUB_NAME.fullmatch(model)
    if named and not folder.exists():
        return _download(named["name"], named["revision"])
    choices = f"{', '.join(sizes)}, the folder of a checkpoint in the Hugging Face format, or a Hub model NAME@REVISION"
    hint = did_you_mean(model, sizes) or choices
    raise ConfigurationError("is neither a size nor a checkpoint's folder", where=model, key="model", hint=hint)


def _download(name: str, revision: str) -> Path:
    """Download a Hub model at the commit of `revision`, if not cached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    where = f"{name}@{revision}"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES), local_files_only=True))
    except (LocalEntryNotFoundError, ValueError, OSError):
        pass  # not in the cache yet
    quiet_hub()
    commit = reachable_commit(name, "model", revision, where, key="model")
    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=list(_FILES)))
    except Exception as error:  # each library below the Hub's client has its own errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        hint = "try again, or download it and name its folder"
        raise UnavailableError(f"cannot be downloaded: {reason}", where=where, key="model", hint=hint) from error


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes()[:_MAX_CONFIG_BYTES])
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("not JSON", where=str(path)) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        hint = "name its family, such as bert, as `save_pretrained` does"
        raise ConfigurationError("is missing", where=str(path), key="model_type", hint=hint)
    if config.get("is_encoder_decoder") or config.get("is_decoder"):
        hint = "encoders of the BERT family and GPT-2 are supported"
        raise ConfigurationError("is a decoder", where=str(path), key="model_type", hint=hint)
    if config.get("position_embedding_type", "absolute") != "absolute":
        # transformers accepts relative positions and silently trains without them.
        raise ConfigurationError("only `absolute` is supported", where=str(path), key="position_embedding_type")
    return config


def checkpoint_model(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return a checkpoint's architecture; raise `InvalidInputError` if its tokenizer differs."""
    path, config = folder / "config.json", _config(folder)
    family = config["model_type"]
    model: dict[str, Any] = {}
    if config.get("n_inner", 0) is None and isinstance(config.get("n_embd"), int):
        config["n_inner"] = 4 * config["n_embd"]  # as GPT-2 builds it
    for key, names in {**_KEYS, **_OPTIONAL}.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is None and key in _KEYS:
            raise ConfigurationError(
                "is missing", where=str(path), key=names[0], hint=f"{family} is neither of the BERT family nor GPT-2"
            )
        if value is not None:
            model[key] = value
    if family in _OFFSET_POSITIONS:
        model["max_position_embeddings"] -= model.get("pad_token_id", 1) + 1
    if family != "bert":
        settings = {key: value for key, value in config.items() if value is not None and not _IGNORED.fullmatch(key)}
        model = {**model, "type_vocab_size": model.get("type_vocab_size") or 1, "family": family, "settings": settings}
    _check_tokenizer(folder, model, manifest)
    return {**model, "checkpoint": str(folder)}


def _check_tokenizer(folder: Path, model: Mapping[str, Any], manifest: Manifest) -> None:
    """Raise unless the dataset was built with the checkpoint's tokenizer."""
    path = tokenizer_file(folder)
    if not path.is_file():
        hint = "save it with AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        raise InvalidInputError(f"contains no {path.name}", where=str(folder), key="model", hint=hint)
    hint = f'build the dataset with tokenizer = "{folder}"'
    own = {digest_bytes(read_tokenizer(folder, lowercase=lowercase)[0]) for lowercase in (True, False)}
    if manifest.tokenizer.sha256 not in own:
        text = f"is not the tokenizer of the dataset {manifest.name!r}: a checkpoint is trained with its own"
        raise InvalidInputError(text, where=str(path), hint=hint)
    size = model["vocab_size"]
    if not isinstance(size, int) or not 0 <= size - manifest.vocab_size < _VOCAB_PADDING:
        text = f"is {size}, and the tokenizer of the dataset {manifest.name!r} has {manifest.vocab_size}"
        hint = "save the model after model.resize_token_embeddings(len(tokenizer))"
        raise InvalidInputError(text, where=str(folder / "config.json"), key="vocab_size", hint=hint)
    if model.get("pad_token_id", 0) != manifest.pad_token_id:
        text = f"is {model.get('pad_token_id', 0)}, and the tokenizer pads with {manifest.pad_token_id}"
        raise InvalidInputError(text, where=str(folder / "config.json"), key="pad_token_id")


def workload_named(suite: Suite | Workloads, name: str, where: str = "") -> Workload:
    """Return the suite's workload called `name`."""
    if name not in suite.workloads:
        hint = suggest_or_list(name, list(suite.workloads))
        raise ConfigurationError(f"the workload {name!r} does not exist", where=where, hint=hint)
    workload = suite.workloads[name]
    if isinstance(workload, CommandWorkload):
        hint = "name a workload that has a model"
        raise ConfigurationError(f"the workload {name!r} is a command", where=where, key="command", hint=hint)
    return workload


def architecture(workload: Workload, manifest: Manifest) -> dict[str, Any]:
    """Return the model spec without weights, for `plumbline.environments.launch.make_weights`."""
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
        if built_in_family(workload.task) == "gpt2":
            model |= _as_gpt2(model)
    else:
        folder = checkpoint_folder(workload.model, SIZES) or Path(workload.model)
        model = checkpoint_model(folder, manifest)
    labels = manifest.num_labels if has_row_labels(workload.task) else None
    return {**model, "num_labels": labels, "task": workload.task}


def _as_gpt2(model: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a BERT spec to a GPT-2 of the same size."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    settings = {_KEYS[key][-1]: model[key] for key in names}
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), model.get("pad_token_id", 0))
    plain = {"type_vocab_size": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}
    return {**plain, "family": "gpt2", "settings": {**settings, "vocab_size": model["vocab_size"], **special}}


def dataset_task(suite: Suite | Workloads, name: str) -> Task:
    """Return a dataset's task; labelled if any workload needs labels."""
    tasks = sorted({workload.task for workload in suite.workloads.values() if workload.data == name})
    return next(filter(has_row_labels, tasks), tasks[0] if tasks else "sequence-classification")


def dataset_source(suite: Suite | Workloads, name: str, where: str = "") -> DatasetSource:
    """Return a dataset's source, with its checkpoint's tokenizer, if any."""
    if name not in suite.datasets:
        known = did_you_mean(name, suite.datasets)
        hint = known or f"add [datasets.{name}], or give --data FOLDER"
        raise ConfigurationError("the dataset has no source", where=where, key=f"datasets.{name}", hint=hint)
    source = suite.datasets[name]
    users = {
        key: workload.model
        for key, workload in suite.workloads.items()
        if isinstance(workload, Workload) and workload.data == name
    }
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
    """Build the RunSpec of a workload, for this dataset and these weights."""
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
