"""Build a dataset: rows, tokenizer, shards, manifest. The same source gives the same bytes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from plumbline.data import grammar
from plumbline.data.hub import read_hub
from plumbline.data.readers import Columns, read_rows
from plumbline.data.rows import Row
from plumbline.data.shards import store_bytes, write_shards, write_whole
from plumbline.data.spool import Spool, SpooledRows
from plumbline.data.tokenizer import read_tokenizer, train_tokenizer
from plumbline.digest import canonical_json
from plumbline.errors import DISK_FULL, ConfigurationError, DiskFullError, InvalidInputError
from plumbline.schema.base import Name, read_model
from plumbline.schema.manifest import Manifest, Task
from plumbline.schema.suite import DatasetSource

__all__ = ["MANIFEST_NAME", "build_dataset", "read_manifest"]

MANIFEST_NAME = "manifest.json"
_LEAST_ROWS = 10
_SPLIT_SEED = 0x53504C49


@dataclass(frozen=True, slots=True)
class _Content:
    train: SpooledRows
    evaluation: SpooledRows
    source: str
    best_accuracy: float | None = None


def build_dataset(source: DatasetSource, name: str, task: Task, out: Path) -> Manifest:
    """Build the dataset `name` in the folder `out`; the manifest is written last."""
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        mend = "lower-case letters, digits, dots, dashes and underscores, 63 at most"
        raise ConfigurationError(f"{name[:80]!r} cannot name a dataset", where=str(out), mend=mend) from error
    try:
        with _gone_if_it_fails(out), Spool(out) as spool:
            make = _imported if source.grammar_seed is None else _generated
            manifest = _write(make(source, task, spool), source, name, task, out)
            write_whole(out / MANIFEST_NAME, canonical_json(manifest.to_json()))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        mend = "free some space, or name another folder"
        raise DiskFullError(f"no room left: {error.strerror}", where=str(out), mend=mend) from error
    return manifest


@contextlib.contextmanager
def _gone_if_it_fails(out: Path) -> Iterator[None]:
    """A folder that was not there before is not there after a build that failed, or was broken off."""
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(out, ignore_errors=True)
        for parent in new[1:]:
            with contextlib.suppress(OSError):  # somebody else has put something there meanwhile
                parent.rmdir()
        raise


def _write(content: _Content, source: DatasetSource, name: str, task: Task, out: Path) -> Manifest:
    """Tokenizer and shards, and the manifest that describes them."""
    labels = {row.label for row in chain(content.train, content.evaluation) if row.label is not None}
    if task == "sequence-classification" and len(labels) < 2:
        mend = "classification needs two classes at least"
        raise InvalidInputError("all rows carry the same label", where=content.source, mend=mend)
    data, vocab_size = (
        read_tokenizer(Path(source.tokenizer))
        if source.tokenizer
        else train_tokenizer(content.train.texts, source.vocab_size, lowercase=source.lowercase)
    )
    tokenizer = store_bytes(out, "tokenizer", ".json", data)
    train = write_shards(out, "train", content.train, 0, source.rows_per_shard)
    evaluation = write_shards(out, "evaluation", content.evaluation, len(content.train), source.rows_per_shard)
    return Manifest(
        name=name,
        task=task,
        num_labels=max(labels) + 1 if labels else None,
        best_accuracy=content.best_accuracy,
        source=content.source,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        train=tuple(train),
        evaluation=tuple(evaluation),
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the dataset in `folder`."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        why = f"holds no {MANIFEST_NAME}" if folder.is_dir() else "no such folder"
        raise InvalidInputError(why, where=str(folder), mend="make the dataset with `plumbline data build` or `import`")
    return read_model(Manifest, path)


def _generated(source: DatasetSource, task: Task, spool: Spool) -> _Content:
    seed = source.grammar_seed or 0
    labelled = task == "sequence-classification"
    reviews = grammar.reviews(seed, 0, source.train_rows + source.evaluation_rows)
    rows = spool.add(reviews if labelled else (Row(row.text, None) for row in reviews))
    return _Content(
        train=rows[: source.train_rows],
        evaluation=rows[source.train_rows :],
        source=f"plumbline's review grammar, seed {seed}",
        best_accuracy=grammar.best_accuracy() if labelled else None,
    )


def _imported(source: DatasetSource, task: Task, spool: Spool) -> _Content:
    name = source.path or ""
    columns = Columns(source.text_column, source.label_column, labelled=task == "sequence-classification")
    path = Path(name)
    if path.exists() or path.suffix:
        train, evaluation = _split(spool.add(read_rows(path, columns)), name, source.evaluation_rows)
        label = path.name
    else:
        first, second = read_hub(name, columns)
        rows = spool.add(first)
        train, evaluation = (
            (_shuffled(rows), _shuffled(spool.add(second))) if second else _split(rows, name, source.evaluation_rows)
        )
        label = f"huggingface.co/datasets/{name}"
    if len(train) + len(evaluation) < _LEAST_ROWS or not len(evaluation):
        raise InvalidInputError(f"has fewer than {_LEAST_ROWS} rows", where=name)
    return _Content(train[: source.train_rows], evaluation[: source.evaluation_rows], label)


def _split(rows: SpooledRows, name: str, evaluation_rows: int) -> tuple[SpooledRows, SpooledRows]:
    """A fixed shuffle, for files are often sorted by label; at most a fifth of the rows evaluates."""
    if len(rows) < _LEAST_ROWS:
        raise InvalidInputError(f"has {len(rows)} rows, fewer than {_LEAST_ROWS}", where=name)
    shuffled = _shuffled(rows)
    count = min(evaluation_rows, len(rows) // 5)
    return shuffled[count:], shuffled[:count]


def _shuffled(rows: SpooledRows) -> SpooledRows:
    keys = np.random.Philox(key=_SPLIT_SEED).random_raw(len(rows))
    return rows.ordered(np.argsort(keys, kind="stable"))
