"""Command workload: a team's own training script, which calls `plumbline.capture`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from pydantic import Field, field_validator

from plumbline.schema.base import Model, Name
from plumbline.schema.captured import MAX_CAPTURED, MAX_FILES
from plumbline.schema.manifest import Key
from plumbline.schema.task import Task

MAX_FILE_BYTES = 256 << 20
"""Maximum size of one of them; larger data is a dataset."""


class CommandWorkload(Model):
    """A team's own training: a command whose script calls `plumbline.capture`."""

    command: str = Field(min_length=1, max_length=4096)
    """The command, such as `python train.py`: its words are split as a shell does, and no shell runs it. `python` is
    the platform's. The suite decides the record's folder, name, seed and number of steps, whatever the script says."""
    files: dict[Key, str] = Field(default={}, max_length=MAX_FILES)
    """Files that the command needs, relative to the suite, such as `["train.py", "config.yaml"]`. A training gets fresh
    copies, checked by digest, in the folder where it runs."""
    data: Name | None = None
    """A dataset; the variable PLUMBLINE_DATA names the folder of its files."""
    task: Task = "sequence-classification"
    """What the rows of `data` are built for."""
    steps: int = Field(default=20, ge=1, le=MAX_CAPTURED)
    """Number of updates that are recorded; the training may go on behind them."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """A part of the training's name; the variable PLUMBLINE_SEED has it."""

    @field_validator("files", mode="before")
    @classmethod
    def _are_named_by_place(cls, files: Any) -> Any:
        return {name: name for name in files} if isinstance(files, (list, tuple)) and _are_texts(files) else files

    @field_validator("command")
    @classmethod
    def _can_be_split(cls, command: str) -> str:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {error}") from error
        if not words:
            raise ValueError("has no word")
        return command


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
