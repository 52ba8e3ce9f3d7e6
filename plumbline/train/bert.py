"""transformers' BERT, loaded without the table of all its other models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

import transformers

if TYPE_CHECKING:
    from transformers import BertConfig
    from transformers.models.bert import modeling_bert

__all__ = ["BertConfig", "modeling_bert"]

_MODELS = "transformers.models"


@contextmanager
def _without_table() -> Iterator[None]:
    """A plain package in the place of `transformers.models`, for as long as BERT is being loaded.

    For the names that it offers, the real one reads the sources of every model, 1,650 files, as `transformers` itself
    has just done: an eighth of the time in which a training starts. Whoever asks for it later gets the real one.
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
