"""Causal language modelling: predict the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.errors import ConfigurationError
from plumbline.schema.spec import ModelSpec, RunSpec
from plumbline.train.compat.transformers import is_causal
from plumbline.train.tasks import IGNORED, Labelling, Task

if TYPE_CHECKING:
    from plumbline.train.rows import Rows


def _label(batch: dict[str, NDArray[np.int64]], epochs: NDArray[np.int64]) -> None:  # noqa: ARG001 - as any labelling
    """Label each token with itself; transformers' models shift the labels."""
    batch["labels"] = np.where(batch["attention_mask"] == 1, batch["input_ids"], IGNORED)


class _CausalLM(Task):
    head = "CausalLM"

    def head_products(self, model: ModelSpec) -> tuple[int, int]:
        return model.hidden_size * model.vocab_size, 0

    def labelling(self, spec: RunSpec, rows: Rows) -> Labelling:  # noqa: ARG002 - a task's signature
        return _label

    def aligned(self, logits: Any, labels: Any) -> tuple[Any, Any]:
        return logits[:, :-1], labels[:, 1:]

    def check(self, model: nn.Module, family: str) -> None:
        """Raise `ConfigurationError` for a model that attends to future tokens."""
        if not is_causal(model):
            hint = "name the checkpoint of a decoder, such as GPT-2"
            text = 'task = "causal-lm" needs attention to earlier tokens alone'
            raise ConfigurationError(text, where=f"model of the family {family!r}", key="model_type", hint=hint)


TASK = _CausalLM()
