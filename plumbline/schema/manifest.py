"""The manifest of a dataset: what its bytes must be, shard by shard."""

from __future__ import annotations

import posixpath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from plumbline.digest import digest_json
from plumbline.schema.base import Model, Name, Sha256

__all__ = ["DataFile", "Key", "Manifest", "Shard", "Task", "safe_key"]

Task = Literal["sequence-classification", "masked-lm"]

MAX_FILE_BYTES = 1 << 40
MAX_SHARDS = 100_000


def safe_key(key: str) -> str:
    """`key` if it is a relative path that stays in its folder on every platform; else `ValueError`."""
    bad = (
        not key
        or len(key) > 512
        or key.startswith("/")
        or "\\" in key
        or ":" in key
        or any(ord(char) < 32 or ord(char) == 127 for char in key)
        or posixpath.normpath(key) != key
        or key.split("/", 1)[0] == ".."
        or key == "."
    )
    if bad:
        raise ValueError(f"{key[:80]!r} is no plain relative path")
    return key


Key = Annotated[str, AfterValidator(safe_key)]
"""A relative path with forward slashes that cannot leave its folder."""


class DataFile(Model):
    """One object: where it lies below its root, how long it is, and what its bytes hash to."""

    key: Key
    size: int = Field(ge=0, le=MAX_FILE_BYTES)
    sha256: Sha256


class Shard(DataFile):
    """One Parquet file with columns `id` (int64), `text` (string) and, for classification, `label` (int64)."""

    num_rows: int = Field(ge=1)


class Manifest(Model):
    """A dataset: its shards in order, split by split, and its tokenizer. Its digest is its identity.

    The number of a row counts from 0 through `train`, then through `evaluation`, in the order given here.
    """

    schema_version: Literal[1] = 1
    name: Name
    task: Task
    num_labels: int | None = Field(default=None, ge=2)
    best_accuracy: float | None = Field(default=None, gt=0, le=1)
    """The accuracy that no model can beat, where the source's grammar tells it."""
    source: str = ""
    tokenizer: DataFile
    vocab_size: int = Field(ge=5)
    train: tuple[Shard, ...] = Field(min_length=1, max_length=MAX_SHARDS)
    evaluation: tuple[Shard, ...] = Field(min_length=1, max_length=MAX_SHARDS)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the dataset's identity."""
        return digest_json(self.to_json())

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, `train` before `evaluation`: the order that numbers the rows."""
        return self.train + self.evaluation

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Everything that has to be staged, the tokenizer first."""
        return (self.tokenizer, *self.shards)

    @model_validator(mode="after")
    def _keys_are_distinct(self) -> Self:
        keys = [file.key.lower() for file in self.files]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} stands twice")
        if self.task == "sequence-classification" and self.num_labels is None:
            raise ValueError("num_labels is missing")
        return self
