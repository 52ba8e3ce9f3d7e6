"""Tasks: the model's head, the labels of a batch, and the head's cost. One module a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plumbline.schema.spec import ModelSpec, RunSpec

if TYPE_CHECKING:
    from plumbline.train.rows import Rows

Labelling = Callable[[dict[str, NDArray[np.int64]], NDArray[np.int64]], None]
"""Changes a batch's `input_ids` and `labels` in place, from the batch and each row's epoch."""


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """What a task adds to a model of any family."""

    head: str
    """Head of transformers' classes: `SequenceClassification` as in `BertForSequenceClassification`."""
    head_products: Callable[[ModelSpec], tuple[int, int]]
    """Multiplications of the head's matrix products, for each token and for each row."""
    labelling: Callable[[RunSpec, Rows], Labelling] | None = None
    """Makes the labels of tokens; without it, labels are those of the dataset's rows."""


def training_task(name: str) -> TrainingTask:
    """Return the task of this name: `TASK` of the module `plumbline.train.tasks.NAME`."""
    module: Any = import_module(f"{__name__}.{name.replace('-', '_')}")
    task: TrainingTask = module.TASK
    return task
