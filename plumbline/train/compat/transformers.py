"""Compatibility with transformers 4.41 and newer: attention implementations, masks, checkpointing.

Since 5.0 the models of the BERT family call the function that the configuration names, in a table to which functions
can be added. Until 4.57 a model's constructor chose a class for each attention module, from a table in the model's
source file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from plumbline.schema.errors import ConfigurationError

_TABLE = "ATTENTION_CLASSES"


def attention_of(model: nn.Module) -> str:
    """Return the name of the attention implementation that the model uses."""
    config: Any = model.config
    asked = str(config._attn_implementation)  # noqa: SLF001 - it has no other name
    classes = _classes(model)
    built = {type(module) for module in model.modules()}
    # Until 4.57 the configuration may be changed without effect: the modules' classes decide.
    return next((name for name, kind in classes.items() if kind in built), asked)


def attention_function(model: nn.Module) -> Callable[..., torch.Tensor] | None:
    """Return the model's attention function of (queries, keys, values, scale).

    Until 4.57 only `sdpa` is a function; `None` for others.
    """
    name, source = attention_of(model), _source(model)
    functions = getattr(source, "ALL_ATTENTION_FUNCTIONS", None)
    if functions is None or _classes(model):
        sdpa = nn.functional.scaled_dot_product_attention
        return (lambda query, key, value, scale: sdpa(query, key, value, scale=scale)) if name == "sdpa" else None
    function = getattr(source, "eager_attention_forward", None) if name == "eager" else functions.get(name)
    if function is None:
        return None
    module = next((module for module in model.modules() if hasattr(module, "is_causal")), model)
    return lambda query, key, value, scale: function(module, query, key, value, None, scaling=scale, dropout=0.0)[0]


def use_attention_formula(model: nn.Module, name: str, formula: Callable[..., Any]) -> None:
    """Make a model compute attention by its formula, with its own dropout modules.

    Until 4.57 the model's class `eager` is that formula; since 5.0 `formula` is added as `name`. Raise
    `ConfigurationError` for a model that chooses its attention in neither way.
    """
    config: Any = model.config
    classes = _classes(model)
    if classes:
        _choose(model, classes)
        config._attn_implementation = "eager"  # noqa: SLF001
        return
    if not hasattr(_source(model), "ALL_ATTENTION_FUNCTIONS"):
        family = getattr(config, "model_type", "")
        text = "attention cannot be replaced by its formula in this version of transformers"
        hint = "install a newer transformers, or train another family"
        raise ConfigurationError(text, where=f"model of the family {family!r}", key="model_type", hint=hint)
    from transformers import AttentionInterface  # since 4.51
    from transformers.masking_utils import AttentionMaskInterface, eager_mask  # since 4.53

    def mask(*given: Any, **named: Any) -> Any:
        # To leave out a mask without padding, transformers would read it on the device: the host would wait.
        if "allow_is_bidirectional_skip" in named:
            named["allow_is_bidirectional_skip"] = False
        return eager_mask(*given, **named)

    AttentionInterface.register(name, formula)
    AttentionMaskInterface.register(name, mask)
    config._attn_implementation = name  # noqa: SLF001


def register_base_first(model: nn.Module) -> None:
    """Register the base model before its heads, to stabilise tied names.

    Since 5.0 some models register their head first: XLM-RoBERTa's table of tokens would be `lm_head.decoder.weight`.
    """
    base = str(getattr(model, "base_model_prefix", ""))
    children = list(model.named_children())
    if base not in dict(children):
        return
    for name, child in children:
        if name != base:
            delattr(model, name)
            setattr(model, name, child)


def looks_for_padding(model: nn.Module) -> bool:
    """Return whether a model infers padding from token ids, without a mask."""
    return is_causal(model) or not hasattr(_source(model), "create_bidirectional_mask")


def is_causal(model: nn.Module) -> bool:
    """Return whether tokens attend only to earlier tokens."""
    return any(getattr(module, "is_causal", False) for module in model.modules())


def takes_made_masks(model: nn.Module) -> bool:
    """Return whether a model accepts masks from `made_mask`."""
    source = _source(model)
    is_plain = not hasattr(source, "create_bidirectional_sliding_window_mask") and not is_causal(model)
    return hasattr(source, "create_bidirectional_mask") and is_plain and attention_of(model) in {"eager", "sdpa"}


def made_mask(model: nn.Module, padding: torch.Tensor) -> torch.Tensor:
    """Return the attention mask that transformers makes for `padding`."""
    rows, length = padding.shape
    return _as_mask(model, padding.bool()[:, None, None, :].expand(rows, 1, length, length))


def mask_of_texts(model: nn.Module, texts: torch.Tensor) -> torch.Tensor:
    """Return a packed attention mask: tokens attend within their text."""
    return _as_mask(model, texts[:, None, :, None] == texts[:, None, None, :])


def _as_mask(model: nn.Module, mask: torch.Tensor) -> torch.Tensor:
    if attention_of(model) == "sdpa":
        return mask.contiguous()
    dtype = next(model.parameters()).dtype
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), torch.finfo(dtype).min)


def recompute_layers(model: nn.Module, *, draws: bool = False) -> bool:
    """Enable activation checkpointing for all layers; return whether the model supports it.

    A model that `draws` gets the same random numbers again. The name `gradient_checkpointing_enable` is deprecated
    since 5.23.
    """
    owner: Any = model
    if not getattr(owner, "supports_gradient_checkpointing", False):
        return False
    owner.config.use_cache = False
    enable = getattr(owner, "activation_checkpointing_enable", None) or owner.gradient_checkpointing_enable
    enable({"use_reentrant": False, "preserve_rng_state": draws})
    return True


def _source(model: nn.Module) -> Any:
    return sys.modules[type(model).__module__]


def _classes(model: nn.Module) -> dict[str, type[nn.Module]]:
    """Return the attention classes by name; empty since transformers 5.0."""
    source = _source(model)
    table = next((name for name in vars(source) if name.endswith(_TABLE)), "")
    return dict(getattr(source, table)) if table else {}


def _choose(model: nn.Module, classes: dict[str, type[nn.Module]]) -> None:
    """Convert every attention module to the eager implementation."""
    others = tuple(kind for name, kind in classes.items() if name != "eager")
    module: Any
    for module in model.modules():
        if type(module) in others:
            module.__class__ = classes["eager"]
        # The masks of `sdpa` and `eager` are both added to the scores; these say which of them is made.
        if hasattr(module, "attn_implementation"):
            module.attn_implementation = "eager"
        if hasattr(module, "_use_sdpa"):
            module._use_sdpa = False  # noqa: SLF001
