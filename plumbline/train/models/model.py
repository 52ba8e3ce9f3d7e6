"""Model from transformers: built from the spec, strictly loaded, described."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from plumbline.schema.spec import ModelSpec, RunSpec
from plumbline.train.compat.transformers import recompute_layers
from plumbline.train.failure import TrainingFailedError, is_of_system
from plumbline.train.ranks import Ranks
from plumbline.train.tasks import training_task

if TYPE_CHECKING:
    from transformers import BertConfig
    from transformers.models.bert import modeling_bert

_MODELS = "transformers.models"

_MOST_BYTES = 12 << 30
"""Estimated size of the activations beyond which they are recomputed."""
_OF_WIDTH, _OF_SCORES = 34, 3
"""Numbers kept per token and layer: of the layer's width, and of attention's scores (counted for BERT in fp64)."""


@contextmanager
def _without_table() -> Iterator[None]:
    """Import BERT without loading transformers' slow list of all models.

    The real package reads the sources of all models, 1,650 files, to list its names: an eighth of a training's start
    time. Later imports get the real package.
    """
    if _MODELS in sys.modules:
        yield
        return
    spec = ModuleSpec(_MODELS, None, is_package=True)
    spec.submodule_search_locations = [str(Path(transformers.__file__).parent / "models")]
    sys.modules[_MODELS] = module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[_MODELS]


with _without_table():
    if not TYPE_CHECKING:
        BertConfig = import_module(f"{_MODELS}.bert.configuration_bert").BertConfig
        modeling_bert = import_module(f"{_MODELS}.bert.modeling_bert")


def _config(spec: ModelSpec, attention: str, dropout: float) -> BertConfig:
    config = BertConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.num_hidden_layers,
        num_attention_heads=spec.num_attention_heads,
        intermediate_size=spec.intermediate_size,
        max_position_embeddings=spec.max_position_embeddings,
        type_vocab_size=spec.type_vocab_size,
        hidden_act=spec.hidden_act,
        layer_norm_eps=spec.layer_norm_eps,
        pad_token_id=spec.pad_token_id,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    config.num_labels = spec.num_labels or 2
    config._attn_implementation = attention  # noqa: SLF001 - the constructor's own argument differs by version
    return config


def _build(spec: ModelSpec, task: str, attention: str, dropout: float) -> nn.Module:
    kind: type[nn.Module] | None = modeling_bert.__dict__.get(f"BertFor{training_task(task).head}")
    if spec.family != "bert" or kind is None:
        from plumbline.train.models.families import build_family

        return build_family(spec, task, attention, dropout)
    return kind(_config(spec, attention, dropout))


def build_on_meta(spec: ModelSpec, task: str) -> nn.Module:
    """Build the model on the meta device, without parameter memory."""
    with torch.device("meta"):
        return _build(spec, task, "eager", 0.0)


def named_once(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return parameters by name; tied parameters appear once, under the first name."""
    return dict(model.named_parameters(remove_duplicate=True))


def build_model(spec: RunSpec, *, attention: str, dropout: float, device: torch.device) -> nn.Module:
    """Build the model of `spec` with uninitialised values; see `load_weights`."""
    return _build(spec.model, spec.task, attention, dropout).to(device)


def read_weights(path: Path, where: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file."""
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        if is_of_system(error):
            raise
        raise TrainingFailedError(
            f"not a safetensors file: {error}", code="weights", where=where, key="model.weights_key"
        ) from error


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load all parameters; raise for missing, unknown or misshaped ones."""
    parameters = named_once(model)
    missing = sorted(set(parameters) - set(weights))
    unknown = sorted(set(weights) - set(parameters))
    if missing or unknown:
        name, problem = (missing[0], "is missing") if missing else (unknown[0], "is not a parameter of the model")
        more = len(missing) + len(unknown) - 1
        raise TrainingFailedError(
            f"{problem}" + (f"; so for {more} more" if more else ""), code="weights", where="weights", key=name
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            value = weights[name]
            if value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)}, the model's is {tuple(parameter.shape)}"
                raise TrainingFailedError(f"has the shape {shapes}", code="weights", where="weights", key=name)
            parameter.copy_(value)


def fit_activations(model: nn.Module, spec: RunSpec, ranks: Ranks, dtype: torch.dtype) -> bool:
    """Enable activation checkpointing if activations are large; return whether they are.

    The spec alone decides, so that every machine does the same. A layer called again in the backward pass computes the
    same bits without dropout, so that recomputation changes memory and time, never the evidence.
    """
    size, length = spec.model, spec.data.sequence_length
    tokens = spec.batch_size * length // (ranks.world * spec.optimizer.accumulation_steps)
    per_token = _OF_WIDTH * size.hidden_size + _OF_SCORES * size.num_attention_heads * length
    is_large = size.num_hidden_layers * tokens * per_token * dtype.itemsize > _MOST_BYTES
    if is_large:
        recompute_layers(model)
    return is_large
