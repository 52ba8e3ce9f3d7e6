"""Model families beyond BERT, including GPT-2, with a checked module structure."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn

from plumbline.schema.errors import ConfigurationError
from plumbline.schema.spec import ModelSpec
from plumbline.train.compat.transformers import looks_for_padding, register_base_first
from plumbline.train.tasks import training_task

PORTABLE_DROPOUT = ("bert", "distilbert", "roberta", "modernbert", "gpt2")
"""Tested families: every dropout is a module, or inside the replaced attention function."""
MODEL_FIELDS = ("input_ids", "attention_mask", "token_type_ids", "labels")
_LENGTH = 8


def build_family(spec: ModelSpec, task: str, attention: str, dropout: float) -> nn.Module:
    """Return the model of `spec`; raise `ConfigurationError` if it cannot be built."""
    kind = getattr(transformers, f"AutoModelFor{training_task(task).head}")
    try:
        config = transformers.AutoConfig.for_model(spec.family, **spec.settings)
        for name, value in config.to_dict().items():
            if (
                ("dropout" in name or name.endswith("pdrop"))
                and isinstance(value, (int, float))
                and not isinstance(value, bool)
            ):
                setattr(config, name, dropout)
        config.num_labels = spec.num_labels or 2
        config.use_cache = False
        model: nn.Module = kind.from_config(config, attn_implementation=attention)
    # The settings come from a user's checkpoint, and each family raises what its own code meets. Torch's errors pass.
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, NotImplementedError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        text = f"transformers {transformers.__version__} cannot build the model: {reason}"
        raise ConfigurationError(text, where=f"model of the family {spec.family!r}", key="model_type") from error
    register_base_first(model)
    return model


_ONLY_IN_SINGLE = ("modernbert",)
"""Families whose eager attention takes its softmax in fp32: the mask of fp64 becomes minus infinity there, and a row
whose window contains only padding becomes NaN."""


@contextlib.contextmanager
def attention_of_double(model: nn.Module) -> Iterator[None]:
    """Use SDPA where a family's eager attention cannot run in fp64."""
    config: Any = model.config
    name = config._attn_implementation  # noqa: SLF001 - it has no other name
    if name == "eager" and config.model_type in _ONLY_IN_SINGLE:
        config._attn_implementation = "sdpa"  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = name  # noqa: SLF001


def in_double(model: nn.Module) -> nn.Module:
    """Return the model in fp64, with an attention that supports fp64."""
    if getattr(model.config, "model_type", "") in _ONLY_IN_SINGLE:
        from plumbline.train.models.dropout import use_plain_attention

        use_plain_attention(model)
    return model.double()


def is_normalization(module: nn.Module) -> bool:
    """Return whether a module is a normalisation layer."""
    return "Norm" in type(module).__name__


def input_fields(model: nn.Module) -> tuple[str, ...]:
    """Return the batch fields that the model accepts, such as segment ids."""
    known = inspect.signature(model.forward).parameters
    segments: Any = getattr(model.config, "type_vocab_size", 0)
    has_segments = "token_type_ids" in known and bool(segments) and segments > 1
    return tuple(name for name in MODEL_FIELDS if name != "token_type_ids" or has_segments)


def check_map(model: nn.Module, family: str) -> None:
    """Raise `ConfigurationError` if a module with parameters is never called itself.

    The probe names a module by its own output. A family that reads a module's weights without calling the module would
    be compared with a gap. A forward pass on the model's device, without labels, checks this.
    """
    where = f"model of the family {family!r}"
    missing = {"input_ids", "attention_mask", "labels"} - set(inspect.signature(model.forward).parameters)
    if missing:
        raise ConfigurationError(f"its model does not accept {min(missing)}", where=where, key="model_type")
    # Without those whose parameters are all tied to another module's.
    names = dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters())
    owners = {name: model.get_submodule(name) for name in names}
    called: set[str] = set()
    handles = [module.register_forward_hook(lambda *_, name=name: called.add(name)) for name, module in owners.items()]
    try:
        with torch.no_grad():
            ids = torch.zeros((1, _LENGTH), dtype=torch.long, device=next(model.parameters()).device)
            # On the meta device neither ids nor mask have values to read.
            model(input_ids=ids, attention_mask=torch.ones_like(ids) if looks_for_padding(model) else None)
    # A model that needs more inputs than ids fails inside its own code: torch raises RuntimeError for wrong shapes.
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise ConfigurationError(
            f"the probe cannot map its modules: {reason}", where=where, key="model_type"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    left = [name for name in owners if name not in called]
    if left:
        text = f"the probe cannot map its modules: {left[0]!r} computes without being called"
        raise ConfigurationError(text, where=where, key="model_type")
