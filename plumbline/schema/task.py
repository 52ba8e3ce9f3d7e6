"""Tasks of training, by what a label belongs to."""

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
    """Return whether a task needs the label of each row, and as many classes as the dataset."""
    return TASKS[task] == "row"


def draws_labels(task: str) -> bool:
    """Return whether a draw decides which tokens have labels, and changes the ids of some."""
    return TASKS[task] == "token"


def built_in_family(task: str) -> str:
    """Return the family of the built-in sizes: GPT-2 where tokens may attend to earlier ones alone, else BERT."""
    return "gpt2" if TASKS[task] == "next" else "bert"
