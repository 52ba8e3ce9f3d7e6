"""Checkpoints in the Hugging Face format: a local folder, or a Hub repository."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plumbline.data.hub import quiet_hub, reachable_commit
from plumbline.data.tokenizer import read_tokenizer, tokenizer_file
from plumbline.digest import digest_bytes
from plumbline.errors import ConfigurationError, InvalidInputError, UnavailableError
from plumbline.schema.manifest import Manifest
from plumbline.schema.suite_file import did_you_mean

_HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)@(?P<revision>[\w./-]+)")
_FILES = (
    "config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json", "*.safetensors",
    "model.safetensors.index.json",
)  # fmt: skip
_VOCAB_PADDING = 128
"""Maximum padding multiple of a checkpoint's vocabulary."""
_MAX_CONFIG_BYTES = 1 << 20

_KEYS = {
    "hidden_size": ("hidden_size", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layers"),
    "num_attention_heads": ("num_attention_heads", "n_heads"),
    "intermediate_size": ("intermediate_size", "hidden_dim"),
    "max_position_embeddings": ("max_position_embeddings",),
    "vocab_size": ("vocab_size",),
}
"""Required keys of the spec, with each family's names."""
_OPTIONAL = {
    "type_vocab_size": ("type_vocab_size",),
    "hidden_act": ("hidden_act", "activation", "hidden_activation"),
    "layer_norm_eps": ("layer_norm_eps", "norm_eps"),
    "pad_token_id": ("pad_token_id",),
}
_OFFSET_POSITIONS = {"roberta", "camembert", "xlm-roberta", "xlm-roberta-xl"}
"""Families whose positions start at the padding token's number, which leaves fewer for a text."""
_IGNORED = re.compile(
    r"architectures|auto_map|d?type|dtype|torch_dtype|transformers_version|_.*|name_or_path|(id2label|label2id)|num_labels"
    r"|problem_type|use_cache|output_.*|return_dict|finetuning_task|gradient_checkpointing|.*dropout.*|model_type"
    r"|reference_compile|repad_logits_with_grad"
)
"""Keys of a `config.json` that do not change a layer's result, or that the spec sets itself."""


def checkpoint_folder(model: str, sizes: Mapping[str, Any]) -> Path | None:
    """Return a checkpoint's folder, downloaded from the Hub if needed; `None` for a built-in size."""
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
        raise ConfigurationError("is not a configuration of a model", where=str(path), key="model_type")
    if config.get("is_encoder_decoder") or config.get("is_decoder"):
        hint = "only encoders of the BERT family are supported"
        raise ConfigurationError("is a decoder", where=str(path), key="model_type", hint=hint)
    if config.get("position_embedding_type", "absolute") != "absolute":
        # transformers accepts relative positions and silently trains without them.
        raise ConfigurationError("only `absolute` is supported", where=str(path), key="position_embedding_type")
    return config


def checkpoint_model(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return a checkpoint's architecture; raise `InvalidInputError` for a different tokenizer."""
    path, config = folder / "config.json", _config(folder)
    family = config["model_type"]
    model: dict[str, Any] = {}
    for key, names in {**_KEYS, **_OPTIONAL}.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is None and key in _KEYS:
            raise ConfigurationError(
                "is missing", where=str(path), key=names[0], hint=f"{family} is not a model of the BERT family"
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
    """Raise unless the dataset's tokenizer is the checkpoint's own."""
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
        raise InvalidInputError(text, where=str(folder / "config.json"), key="vocab_size", hint=hint)
    if model.get("pad_token_id", 0) != manifest.pad_token_id:
        text = f"is {model.get('pad_token_id', 0)}, and the tokenizer pads with {manifest.pad_token_id}"
        raise InvalidInputError(text, where=str(folder / "config.json"), key="pad_token_id")
