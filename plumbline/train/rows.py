"""Dataset rows of a run: read from staged shards, hashed, and tokenized."""

from __future__ import annotations

import importlib.util
import threading
from collections import deque
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plumbline.schema.digest import canonical_json, digest_bytes
from plumbline.schema.evidence import DataEvidence
from plumbline.schema.manifest import Shard
from plumbline.schema.spec import RunSpec
from plumbline.schema.task import has_row_labels
from plumbline.train.failure import TrainingFailedError, is_of_system
from plumbline.train.source import DataSource

FIELDS = ("input_ids", "attention_mask", "token_type_ids")
_MAX_SHARDS_KEPT = 10_000
_ENCODED_AT_ONCE = 128
"""Rows tokenized at once; between two calls the training's own thread gets its turn."""
_LOADED_AT_ONCE = 8
_PADDING = 128
"""Maximum padding multiple of a checkpoint's token table."""


def _read_columns(path: Path, shard: Shard, columns: list[str], rows: NDArray[np.int64]) -> list[list[Any]]:
    """Return some rows of a file's columns, using `datasets` if installed."""
    try:
        table = pq.read_table(path, columns=columns)
    except (pa.ArrowException, OSError, KeyError) as error:
        if is_of_system(error):
            raise
        raise TrainingFailedError(f"not a valid Parquet file: {error}", code="data", where=shard.key) from error
    if table.num_rows != shard.num_rows:
        raise TrainingFailedError(
            f"contains {table.num_rows} rows, the manifest says {shard.num_rows}", code="data", where=shard.key
        )
    if importlib.util.find_spec("datasets") is not None:
        import datasets

        # A table with a name is not pickled: `dill` fails on packages that are not in the folder of the environment.
        whole = datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint=shard.sha256)
        taken = whole.select(rows.tolist(), new_fingerprint=f"{shard.sha256[:32]}-taken")
        return [list(taken[column]) for column in columns]
    return [table.column(column).take(pa.array(rows)).to_pylist() for column in columns]


class Rows:
    """Dataset rows by number; reading a shard waits until it is staged."""

    def __init__(self, spec: RunSpec, source: DataSource, wanted: NDArray[np.int64]) -> None:
        self._spec, self._source = spec, source
        self.ids = np.unique(wanted)
        self._shards = source.manifest.shards
        self._starts = np.concatenate(([0], np.cumsum([shard.num_rows for shard in self._shards])))
        self._hashed: set[int] = set()
        self._loads: dict[int, Future[None]] = {}
        self._asked: set[int] = set()
        self._next_shards = deque(self._shards_of(wanted))
        shape = (len(self.ids), spec.data.sequence_length)
        self._fields: dict[str, NDArray[Any]] = {
            "input_ids": np.zeros(shape, np.int32),
            "attention_mask": np.zeros(shape, np.uint8),
            "token_type_ids": np.zeros(shape, np.uint8),
        }
        self._labels = np.zeros(len(self.ids), np.int64)
        self._raw = np.zeros((2, len(self.ids), 32), np.uint8)
        self.tokenizer = self._open_tokenizer()

    def _open_tokenizer(self) -> Tokenizer:
        file = self._source.manifest.tokenizer
        content = self._source.wait(file).read_bytes()  # tokenizers raises a plain Exception for a failed disk
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # tokenizers raises nothing narrower
            raise TrainingFailedError(f"not a tokenizer: {error}", code="tokenizer", where=file.key) from error
        self._check_size(tokenizer.get_vocab_size(with_added_tokens=True), file.key)
        stored = tokenizer.truncation or {}
        length, pad = self._spec.data.sequence_length, self._spec.model.pad_token_id
        tokenizer.enable_truncation(length, direction=stored.get("direction", "right"))
        stored = tokenizer.padding or {}
        tokenizer.enable_padding(
            length=length, direction=stored.get("direction", "right"), pad_id=pad, pad_token=tokenizer.id_to_token(pad)
        )
        return tokenizer

    def _check_size(self, size: int, where: str) -> None:
        """Raise if the tokenizer's vocabulary does not fit the model."""
        manifest, expected = self._source.manifest, self._spec.model.vocab_size
        padded = self._source.manifest_sha256 == self._spec.data.manifest_sha256 and 0 <= expected - size < _PADDING
        if size != expected and not padded:
            raise TrainingFailedError(f"has {size} tokens, the model {expected}", code="tokenizer", where=where)
        if size != manifest.vocab_size:
            raise TrainingFailedError(
                f"has {size} tokens, the manifest says {manifest.vocab_size}", code="tokenizer", where=where
            )

    def _read(self, index: int) -> tuple[slice, list[Any]]:
        """Read, validate and hash the rows needed from a shard."""
        shard, start = self._shards[index], int(self._starts[index])
        first, last = np.searchsorted(self.ids, (start, start + shard.num_rows))
        here = self.ids[first:last] - start
        classify = has_row_labels(self._spec.task)
        names = ["text", *(["text_pair"] if self._source.manifest.pairs else [])]
        columns = [*names, "label"] if classify else names
        texts_here = dict(zip(columns, _read_columns(self._source.wait(shard), shard, columns, here), strict=True))
        texts = list(zip(*(texts_here[name] for name in names), strict=True))
        for place, parts in enumerate(texts):
            if not all(isinstance(part, str) for part in parts):
                raise TrainingFailedError(
                    "is not a text", code="data", where=f"{shard.key} row {here[place]}", key="text"
                )
            raw = parts[0].encode() if len(parts) == 1 else canonical_json(parts)
            self._raw[0, first + place] = np.frombuffer(bytes.fromhex(digest_bytes(raw)), np.uint8)
        if classify:
            self._take_labels(shard, here, texts_here["label"], int(first))
        self._hashed.add(index)
        return slice(int(first), int(last)), [parts[0] if len(parts) == 1 else parts for parts in texts]

    def _load(self, index: int, loaded: Future[None]) -> None:
        """Read and tokenize the rows needed from a shard; thread-safe."""
        try:
            rows, texts = self._read(index)
            for at in range(0, len(texts), _ENCODED_AT_ONCE):
                if not threading.main_thread().is_alive():
                    return  # the process ends, and waits for this thread
                encoded = self.tokenizer.encode_batch(texts[at : at + _ENCODED_AT_ONCE])
                here = slice(rows.start + at, rows.start + at + len(encoded))
                self._fields["input_ids"][here] = [e.ids for e in encoded]
                self._fields["attention_mask"][here] = [e.attention_mask for e in encoded]
                self._fields["token_type_ids"][here] = [e.type_ids for e in encoded]
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: whoever needs the shard gets the error
            loaded.set_exception(error)
            return
        loaded.set_result(None)

    def _start(self, index: int) -> Future[None]:
        """Start loading a shard in a thread, unless already started."""
        if index not in self._loads:
            self._loads[index] = loaded = Future[None]()
            threading.Thread(target=self._load, args=(index, loaded), name="tokenize").start()
        return self._loads[index]

    def _start_ahead(self) -> None:
        """Start loading the next shard in advance."""
        while self._next_shards and self._next_shards[0] in self._loads:
            self._next_shards.popleft()
        if self._next_shards:
            self._start(self._next_shards[0])

    def prepare(self, rows: NDArray[np.int64]) -> None:
        """Tokenize `rows` in parallel by shard, and wait for all background loads."""
        shards = self._shards_of(rows)
        for at in range(0, len(shards), _LOADED_AT_ONCE):
            for loaded in [self._start(index) for index in shards[at : at + _LOADED_AT_ONCE]]:
                loaded.result()
        self._asked.update(shards)
        wait(self._loads.values())

    def _take_labels(self, shard: Shard, here: NDArray[np.int64], labels: list[Any], first: int) -> None:
        limit = self._spec.model.num_labels or 0
        for place, label in enumerate(labels):
            if not isinstance(label, int) or not 0 <= label < limit:
                raise TrainingFailedError(
                    f"{label!r} is not a label from 0 to {limit - 1}", code="labels",
                    where=f"{shard.key} row {here[place]}", key="label",
                )  # fmt: skip
            raw = label.to_bytes(8, "little", signed=True)
            self._raw[1, first + place] = np.frombuffer(bytes.fromhex(digest_bytes(raw)), np.uint8)
            self._labels[first + place] = label

    def _shards_of(self, rows: NDArray[np.int64]) -> list[int]:
        return list(dict.fromkeys((np.searchsorted(self._starts, rows, side="right") - 1).tolist()))

    def _need(self, rows: NDArray[np.int64]) -> NDArray[np.intp]:
        """Load the shards of `rows`, and return the rows' array indices."""
        for index in self._shards_of(rows):
            self._start(index).result()
            if index not in self._asked:
                self._asked.add(index)
                self._start_ahead()
        return np.searchsorted(self.ids, rows)

    def encoded(self, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return tokenized rows, with row numbers and labels."""
        places = self._need(rows)
        fields = {name: self._fields[name][places].astype(np.int64) for name in FIELDS}
        return {"row_ids": rows.astype(np.int64), **fields, "labels": self._labels[places]}

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return token counts of tokenized rows, without padding."""
        places = np.searchsorted(self.ids, rows)
        lengths: NDArray[np.int64] = self._fields["attention_mask"].sum(axis=1, dtype=np.int64)
        return lengths[places]

    def evidence(self) -> DataEvidence:
        """Return the dataset evidence, after reading all needed rows."""
        for loaded in self._loads.values():
            loaded.result()
        for index in self._shards_of(self.ids):
            if index not in self._hashed:
                self._read(index)
        ids = np.ascontiguousarray(self.ids, dtype="<i8").tobytes()
        return DataEvidence(
            manifest_sha256=self._source.manifest_sha256,
            tokenizer_sha256=self._source.manifest.tokenizer.sha256,
            rows_sha256=digest_bytes(ids + self._raw.tobytes()),
            num_rows=len(self.ids),
            shards=self._shards[:_MAX_SHARDS_KEPT],
            receipt=self._source.manifest.receipt,
            best_accuracy=self._source.manifest.best_accuracy,
        )

    def table(self) -> pa.Table:
        """Return the table for `rows.parquet`: 8-byte digests of raw values."""
        text, label = (np.ascontiguousarray(raw[:, :8]).view("<u8").reshape(-1) for raw in self._raw)
        return pa.table({"row_id": self.ids, "text": text, "label": label})
