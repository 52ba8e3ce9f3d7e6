"""Dataset build: rows, tokenizer, shards and manifest, with reproducible bytes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from plumbline.data.datasets import grammar
from plumbline.data.datasets.classes import LabelIndex
from plumbline.data.datasets.files import SourceFile, is_file_source, locate
from plumbline.data.datasets.hub import SourceRows, read_hub, read_saved
from plumbline.data.datasets.readers import read_rows
from plumbline.data.datasets.receipts import Reading, write_origins
from plumbline.data.datasets.rows import ColumnOptions, RawRow, Row, label_name
from plumbline.data.datasets.shards import Spool, SpooledRows, store_bytes, write_shards, write_whole
from plumbline.data.datasets.tokenizer import read_tokenizer, train_tokenizer
from plumbline.schema.base import Name, read_model
from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import DISK_FULL, ConfigurationError, DiskFullError, InvalidInputError
from plumbline.schema.manifest import ClassRows, ImportReceipt, Manifest
from plumbline.schema.suite import DatasetSource
from plumbline.schema.task import Task, has_row_labels

MANIFEST_NAME = "manifest.json"
_LEAST_ROWS = 10
_SPLIT_SEED = 0x53504C49


@dataclass(frozen=True, slots=True)
class _Content:
    train: SpooledRows
    evaluation: SpooledRows
    source: str
    classes: tuple[str, ...] = ()
    keys: dict[str, str] = field(default_factory=dict)
    """Names of the source's files in messages, with their names within the source."""
    receipt: ImportReceipt | None = None
    best_accuracy: float | None = None


def build_dataset(source: DatasetSource, name: str, task: Task, out: Path) -> Manifest:
    """Build the dataset `name` in folder `out`, writing the manifest last."""
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        hint = "lower-case letters, digits, dots, dashes and underscores, 63 at most"
        raise ConfigurationError(f"{name[:80]!r} cannot name a dataset", where=str(out), hint=hint) from error
    try:
        with _gone_if_it_fails(out), Spool(out) as spool:
            make = _imported if source.grammar_seed is None else _generated
            manifest = _write(make(source, task, spool), source, name, task, out)
            write_whole(out / MANIFEST_NAME, canonical_json(manifest.to_json()))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        hint = "free some space, or name a different folder"
        raise DiskFullError(f"no room left: {error.strerror}", where=str(out), hint=hint) from error
    return manifest


@contextlib.contextmanager
def _gone_if_it_fails(out: Path) -> Iterator[None]:
    """Remove newly created folders if the build fails or is interrupted."""
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(out, ignore_errors=True)
        for parent in new[1:]:
            with contextlib.suppress(OSError):  # a different process created files there meanwhile
                parent.rmdir()
        raise


def _write(content: _Content, source: DatasetSource, name: str, task: Task, out: Path) -> Manifest:
    """Write tokenizer and shards, and return their manifest."""
    counts = [
        Counter(row.label for row in rows if row.label is not None) for rows in (content.train, content.evaluation)
    ]
    labels = set(counts[0]) | set(counts[1])
    if has_row_labels(task) and len(labels) < 2:
        hint = "classification needs at least two classes"
        raise InvalidInputError("all rows have the same label", where=content.source, hint=hint)
    if source.tokenizer:
        data, vocab_size, padding = read_tokenizer(Path(source.tokenizer), lowercase=source.lowercase)
    else:
        data, vocab_size = train_tokenizer(content.train.texts, source.vocab_size, lowercase=source.lowercase)
        padding = 0
    tokenizer = store_bytes(out, "tokenizer", ".json", data)
    train = write_shards(out, "train", content.train, 0, source.rows_per_shard)
    evaluation = write_shards(out, "evaluation", content.evaluation, len(content.train), source.rows_per_shard)
    return Manifest(
        name=name,
        task=task,
        num_labels=len(content.classes) or (max(labels) + 1 if labels else None),
        classes=tuple(
            ClassRows(name=one, train_rows=counts[0][place], evaluation_rows=counts[1][place])
            for place, one in enumerate(content.classes)
        ),
        pairs=any(row.pair is not None for row in islice(content.train, 1)),
        best_accuracy=content.best_accuracy,
        source=content.source,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        pad_token_id=padding,
        train=tuple(train),
        evaluation=tuple(evaluation),
        receipt=content.receipt,
        origins=write_origins(out, chain(content.train, content.evaluation), content.keys),
    )


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the dataset in `folder`."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        why = f"contains no {MANIFEST_NAME}" if folder.is_dir() else "no such folder"
        raise InvalidInputError(why, where=str(folder), hint="make the dataset with `plumbline data build` or `import`")
    return read_model(Manifest, path)


def _generated(source: DatasetSource, task: Task, spool: Spool) -> _Content:
    seed = source.grammar_seed or 0
    labelled = has_row_labels(task)
    reviews = grammar.reviews(seed, 0, source.train_rows + source.evaluation_rows)
    rows = spool.add(reviews if labelled else (Row(row.text, None) for row in reviews))
    return _Content(
        train=rows[: source.train_rows],
        evaluation=rows[source.train_rows :],
        source=f"plumbline's review grammar, seed {seed}",
        best_accuracy=grammar.best_accuracy() if labelled else None,
    )


def _imported(source: DatasetSource, task: Task, spool: Spool) -> _Content:
    """Read the user's rows, determine classes, split off evaluation rows."""
    name = source.path or ""
    labelled = has_row_labels(task)
    options = ColumnOptions(
        source.text_column, source.label_column, source.pair_column, labelled=labelled, header=source.header
    )
    reading = Reading()
    index = LabelIndex(name, reading)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=spool.folder) as downloads:
        sources = _sources(source, options, Path(downloads), reading)
        first = spool.add(index.rows(sources.train))
        second = spool.add(index.rows(sources.evaluation)) if sources.evaluation is not None else None
    named = sources.classes if source.labels is None else source.labels
    given = None if named is None else tuple(label_name(label, name, "labels") for label in named)
    classes, numbers, spelling = index.classes(given) if labelled else ((), array("h"), {})
    first = first.labelled(numbers)
    if second is not None:
        train, evaluation = _shuffled(first), _shuffled(second.labelled(numbers))
    else:
        train, evaluation = _split(first, name, source.evaluation_rows)
    if len(train) + len(evaluation) < _LEAST_ROWS or not len(evaluation) or not len(train):
        raise InvalidInputError(f"has fewer than {_LEAST_ROWS} rows", where=name)
    return _Content(
        train[: source.train_rows], evaluation[: source.evaluation_rows], sources.label, classes, sources.keys,
        reading.receipt(sources.keys, spelling),
    )  # fmt: skip


def _sources(source: DatasetSource, options: ColumnOptions, downloads: Path, reading: Reading) -> SourceRows:
    name = source.path or ""
    apart = _evaluation_files(source, downloads / "evaluation")
    if not is_file_source(name):
        sources = read_hub(source, options, reading)
    else:
        located = locate(name, downloads / "train", apart)
        _check_hub_keys(source, may_split=located.saved is not None)
        reading.unread = located.unread
        if located.saved is not None:
            sources = read_saved(located.saved, source, located.label, options, reading)
        else:
            sources = SourceRows(
                _rows(located.train, options, reading),
                _rows(located.evaluation, options, reading) if located.evaluation else None,
                located.label, keys=_keys((*located.train, *located.evaluation)),
            )  # fmt: skip
    if not apart:
        return sources
    return replace(sources, evaluation=_rows(apart, options, reading), keys={**sources.keys, **_keys(apart)})


def _evaluation_files(source: DatasetSource, downloads: Path) -> tuple[SourceFile, ...]:
    """Return the files that evaluate, if they are named apart."""
    if source.evaluation_path is None:
        return ()
    if not is_file_source(source.evaluation_path):
        hint = "a file, a folder, a glob or a store URL"
        raise ConfigurationError("is not a file", where=source.evaluation_path, key="evaluation_path", hint=hint)
    located = locate(source.evaluation_path, downloads)
    if located.evaluation:
        hint = "choose the files that evaluate with a glob"
        raise ConfigurationError("names splits", where=source.evaluation_path, key="evaluation_path", hint=hint)
    return located.train


def _check_hub_keys(source: DatasetSource, *, may_split: bool) -> None:
    """Raise if Hub dataset options are set for local files."""
    for key in ("config", "revision", *(() if may_split else ("split", "evaluation_split"))):
        if getattr(source, key) is not None:
            hint = "for datasets of the Hugging Face Hub only; evaluation_path names files that evaluate"
            raise ConfigurationError("is set for files", where=source.path or "", key=key, hint=hint)


def _keys(files: Sequence[SourceFile]) -> dict[str, str]:
    return {file.name: file.key for file in files}


def _rows(files: Sequence[SourceFile], options: ColumnOptions, reading: Reading) -> Iterator[RawRow]:
    """Yield the rows of all files; raise if the only file is empty."""
    return chain.from_iterable(
        read_rows(file.path, options, file.name, reading, may_be_empty=len(files) > 1) for file in files
    )


def _split(rows: SpooledRows, name: str, evaluation_rows: int) -> tuple[SpooledRows, SpooledRows]:
    """Shuffle reproducibly, and split off at most a fifth for evaluation."""
    if len(rows) < _LEAST_ROWS:
        raise InvalidInputError(f"has {len(rows)} rows, fewer than {_LEAST_ROWS}", where=name)
    shuffled = _shuffled(rows)
    count = min(evaluation_rows, len(rows) // 5)
    return shuffled[count:], shuffled[:count]


def _shuffled(rows: SpooledRows) -> SpooledRows:
    keys = np.random.Philox(key=_SPLIT_SEED).random_raw(len(rows))
    return rows.ordered(np.argsort(keys, kind="stable"))
