"""BERT from transformers, loaded without the table of all other models."""

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
    """Replace `transformers.models` by a plain package while BERT is imported.

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
