"""Tasks of training, by what a label belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

TASKS: Mapping[str, Literal["row", "token"]] = {
    "sequence-classification": "row",
    "masked-lm": "token",
}
"""`row`: the dataset has a label for each row. `token`: the training labels tokens; -100 is no label."""


def _known(task: str) -> str:
    if task not in TASKS:
        raise ValueError(f"{task!r} is not a task: {' or '.join(map(repr, TASKS))}")
    return task


Task = Annotated[str, Field(max_length=64), AfterValidator(_known)]


def has_row_labels(task: str) -> bool:
    """Return whether a task needs the label of each row, and as many classes as the dataset."""
    return TASKS[task] == "row"
