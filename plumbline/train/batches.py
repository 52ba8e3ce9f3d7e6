"""Global batches in order, through torch's DataLoader, with masking for language models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from plumbline.schema.spec import RunSpec
from plumbline.train.failure import TrainingFailedError
from plumbline.train.order import Order, random_keys
from plumbline.train.rows import Rows

__all__ = ["Batch", "EvaluationRows", "TrainingRows", "make_loader"]

Batch = dict[str, torch.Tensor]
_IGNORED = -100
_SPECIAL = (("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]"), ("<mask>", "<s>", "</s>", "<pad>", "<unk>"))
"""Tokens that are never hidden, the mask first: BERT's and RoBERTa's."""


class _Masking:
    """BERT's masking, keyed by row and epoch.

    Of the hidden tokens, 80% become [MASK], 10% a random token, and 10% stay.
    """

    def __init__(self, spec: RunSpec, rows: Rows) -> None:
        self._spec = spec
        find = rows.tokenizer.token_to_id
        names = next((names for names in _SPECIAL if find(names[0]) is not None), None)
        if names is None:
            raise TrainingFailedError("has no [MASK] or <mask> token", code="tokenizer", where="tokenizer")
        special_ids = [token for token in map(find, names) if token is not None]
        self._mask, self._num_tokens = special_ids[0], rows.tokenizer.get_vocab_size(with_added_tokens=True)
        self._special = np.array(special_ids)

    def __call__(self, batch: dict[str, NDArray[np.int64]], epochs: NDArray[np.int64]) -> None:
        spec, ids = self._spec, batch["input_ids"]
        length = ids.shape[1]
        keys = np.stack([
            random_keys(2 * length, "mask", spec.seed, int(row), int(epoch))
            for row, epoch in zip(batch["row_ids"], epochs, strict=True)
        ])  # fmt: skip
        chosen, kind = keys[:, :length] >> np.uint64(32), keys[:, length:]
        hidden = chosen < np.uint64(round(spec.data.mask_probability * 2**32))
        hidden &= ~np.isin(ids, self._special) & (batch["attention_mask"] == 1)
        batch["labels"] = np.where(hidden, ids, _IGNORED)
        tenth, other = (kind >> np.uint64(32)) % np.uint64(10), (kind & np.uint64(0xFFFFFFFF)).astype(np.int64)
        ids = np.where(hidden & (tenth < 8), self._mask, ids)
        batch["input_ids"] = np.where(hidden & (tenth == 8), other % self._num_tokens, ids)


class _Encoded(Dataset[dict[str, NDArray[np.int64]]]):
    """Rows by position, fetched one batch at a time."""

    def __init__(self, spec: RunSpec, rows: Rows) -> None:
        self._rows = rows
        self._masking = _Masking(spec, rows) if spec.task == "masked-lm" else None

    def _fetch(self, rows: NDArray[np.int64], epochs: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        batch = self._rows.encoded(rows)
        if self._masking:
            self._masking(batch, epochs)
        return batch

    def __getitem__(self, position: int) -> dict[str, NDArray[np.int64]]:
        return {name: values[0] for name, values in self.__getitems__([position]).items()}

    def __getitems__(self, positions: list[int]) -> dict[str, NDArray[np.int64]]:
        raise IndexError(positions)


class TrainingRows(_Encoded):
    """Training rows in order, from batch `first` on; `cycle` batches repeat without end."""

    def __init__(self, spec: RunSpec, rows: Rows, order: Order, *, first: int, count: int, cycle: int) -> None:
        super().__init__(spec, rows)
        self._order, self._first = order, first * spec.batch_size
        self._count, self._cycle = count * spec.batch_size, cycle * spec.batch_size

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, positions: list[int]) -> dict[str, NDArray[np.int64]]:
        places = (np.asarray(positions) + self._first) % self._cycle
        return self._fetch(self._order.rows(places), places // self._order.num_rows)


class EvaluationRows(_Encoded):
    """First rows of the evaluation split."""

    def __init__(self, spec: RunSpec, rows: Rows, *, start: int, count: int) -> None:
        super().__init__(spec, rows)
        self._start, self._count = start, count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, positions: list[int]) -> dict[str, NDArray[np.int64]]:
        rows = np.asarray(positions, dtype=np.int64) + self._start
        return self._fetch(rows, np.zeros(len(rows), np.int64))


def _collate(batch: Any) -> Batch:
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in batch.items()}


def make_loader(rows: _Encoded, batch_size: int, device: torch.device) -> Iterator[Batch]:
    """Return global batches in order, without draws from torch's generator."""
    loader: DataLoader[Any] = DataLoader(
        rows,
        batch_size=batch_size,
        shuffle=False,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),
    )
    return iter(loader)
