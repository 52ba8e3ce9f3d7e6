"""Manifest of a dataset: the expected bytes of each shard."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from plumbline.schema.base import Count, Model, Name, Sha256, Text
from plumbline.schema.digest import digest_json
from plumbline.schema.store_url import safe_key
from plumbline.schema.task import Task, has_row_labels

MAX_FILE_BYTES = 1 << 40
MAX_SHARDS = 100_000
_MAX_SHOWN = 300
_ABOUT_THE_IMPORT = ("origins", "receipt")


Key = Annotated[str, AfterValidator(safe_key)]
"""A relative path with forward slashes that cannot leave its folder."""


class DataFile(Model):
    """One dataset file: key, size and SHA-256."""

    key: Key
    size: int = Field(ge=0, le=MAX_FILE_BYTES)
    sha256: Sha256


class Shard(DataFile):
    """One Parquet file with columns `id` (int64), `text` and optionally `label` (int64).

    A dataset of pairs has a column `text_pair` (string) too.
    """

    num_rows: int = Field(ge=1, le=1 << 48)
    rows_sha256: Sha256
    """SHA-256 of the rows, however a Parquet file stores them."""

    def holds_the_rows_of(self, other: Shard) -> bool:
        """Return whether both shards contain the same rows in the same order."""
        return (self.num_rows, self.rows_sha256) == (other.num_rows, other.rows_sha256)


class ClassRows(Model):
    """One class of an imported dataset: label, and row counts per split."""

    name: str = Field(min_length=1, max_length=200)
    train_rows: Count
    evaluation_rows: Count


class ImportReceipt(Model):
    """Receipt of how an imported dataset's files were read."""

    files: Count
    """Number of files with rows."""
    lines: Count
    """Lines of text files, and rows of other files."""
    rows: Count
    """Rows read; a dataset may keep fewer."""
    read_as: tuple[Text, ...] = Field(default=(), max_length=20)
    """Format, encoding, delimiter, quoting and header assumed."""
    columns: tuple[Text, ...] = Field(default=(), max_length=20)
    """Columns that the rows were read by."""
    notes: tuple[Text, ...] = Field(default=(), max_length=20)
    """Labels merged, files without a row, and rows of several lines."""

    def differences(self, other: ImportReceipt | None) -> tuple[str, ...]:
        """Describe how this import differs from `other`; empty if that is unknown."""
        if other is None:
            return ()
        texts = []
        for key in ("files", "lines", "rows"):
            ours, theirs = getattr(self, key), getattr(other, key)
            if ours != theirs:
                texts.append(f"{ours:,} {key} read instead of {theirs:,}")
        for key in ("read_as", "columns", "notes"):
            ours, theirs = ("; ".join(getattr(each, key))[:_MAX_SHOWN] or "nothing noted" for each in (self, other))
            if ours != theirs:
                texts.append(f"{ours} instead of {theirs}")
        return tuple(texts)


class Manifest(Model):
    """Dataset: ordered shards per split, and a tokenizer. Its digest is its identity.

    The number of a row counts from 0 through `train`, then through `evaluation`, in the order given here.
    """

    schema_version: Literal[1] = 1
    name: Name
    task: Task
    num_labels: int | None = Field(default=None, ge=2, le=1_000_000)
    classes: tuple[ClassRows, ...] = Field(default=(), max_length=10_000, fail_fast=True)
    """Classes of the labels 0 to num_labels - 1; empty for generated data."""
    pairs: bool = False
    """Whether each row has two texts."""
    pad_token_id: Count = 0
    """The token that fills short rows."""
    best_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Maximum achievable accuracy, if the source's grammar defines it."""
    source: Text = ""
    tokenizer: DataFile
    vocab_size: int = Field(ge=5, le=2_000_000)
    train: tuple[Shard, ...] = Field(min_length=1, max_length=MAX_SHARDS, fail_fast=True)
    evaluation: tuple[Shard, ...] = Field(min_length=1, max_length=MAX_SHARDS, fail_fast=True)
    origins: DataFile | None = None
    """Parquet file of the user's own file and line of each row; only of imported data."""
    receipt: ImportReceipt | None = None
    """How the user's files were read; only of imported data."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, as dataset identity.

        How the rows were read is not part of it: a dataset that is imported again trains as before.
        """
        return digest_json({key: value for key, value in self.to_json().items() if key not in _ABOUT_THE_IMPORT})

    @property
    def content_sha256(self) -> str:
        """Return the SHA-256 of tokenizer, rows, order and classes."""
        names = [entry.name for entry in self.classes]
        splits = ([shard.rows_sha256 for shard in split] for split in (self.train, self.evaluation))
        files = [self.tokenizer.sha256, *splits]
        return digest_json([self.task, self.num_labels, names, self.pairs, *files])

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Return all shards in row order, `train` first."""
        return self.train + self.evaluation

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Return all files to publish, tokenizer first."""
        return (self.tokenizer, *self.shards, *((self.origins,) if self.origins else ()))

    def differences(self, other: Manifest) -> tuple[str, ...]:
        """Describe the differences from the manifest `other`."""
        texts = []
        for split in ("train", "evaluation"):
            ours, theirs = (sum(shard.num_rows for shard in getattr(each, split)) for each in (self, other))
            if ours != theirs:
                texts.append(f"{ours:,} rows of {split} instead of {theirs:,}")
        pairs = zip(self.shards, other.shards, strict=False)
        same = len(self.shards) == len(other.shards) and all(ours.holds_the_rows_of(theirs) for ours, theirs in pairs)
        if not same and not texts:
            texts.append("different rows, or a different order")
        classes = [", ".join(entry.name for entry in each.classes)[:_MAX_SHOWN] or "none" for each in (self, other)]
        if classes[0] != classes[1]:
            texts.append(f"the classes {classes[0]} instead of {classes[1]}")
        if self.tokenizer.sha256 != other.tokenizer.sha256:
            texts.append("a different tokenizer")
        if self.source != other.source:
            texts.append(f"made from {self.source} instead of {other.source}")
        return (*texts, *(self.receipt.differences(other.receipt) if self.receipt else ()))

    @model_validator(mode="after")
    def _keys_are_distinct(self) -> Self:
        keys = [file.key.lower() for file in self.files]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} appears twice")
        if has_row_labels(self.task) and self.num_labels is None:
            raise ValueError("num_labels is missing")
        if self.classes and len(self.classes) != self.num_labels:
            raise ValueError("the number of classes differs from num_labels")
        return self
