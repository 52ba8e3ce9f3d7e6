"""Training tasks, by whether labels belong to rows or tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

TASKS: Mapping[str, Literal["row", "token", "next"]] = {
    "sequence-classification": "row",
    "masked-lm": "token",
    "causal-lm": "next",
}
"""`row`: the dataset labels each row. `token`: the training draws labels of tokens; -100 is not a label. `next`:
each token is the label of the one before."""


def _known(task: str) -> str:
    if task not in TASKS:
        raise ValueError(f"{task!r} is not a task: {' or '.join(map(repr, TASKS))}")
    return task


Task = Annotated[str, Field(max_length=64), AfterValidator(_known)]


def has_row_labels(task: str) -> bool:
    """Return whether a task labels whole rows, with the dataset's classes."""
    return TASKS[task] == "row"


def draws_labels(task: str) -> bool:
    """Return whether tokens are masked randomly, which decides the labels."""
    return TASKS.get(task) == "token"


def built_in_family(task: str) -> str:
    """Return the built-in model family: GPT-2 for causal tasks, else BERT."""
    return "gpt2" if TASKS[task] == "next" else "bert"
