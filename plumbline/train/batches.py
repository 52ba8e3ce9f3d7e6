"""Global batches in order, through torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from plumbline.schema.spec import RunSpec
from plumbline.staging.order import Order
from plumbline.train.rows import Rows
from plumbline.train.tasks import training_task

Batch = dict[str, torch.Tensor]


class _Encoded(Dataset[dict[str, NDArray[np.int64]]]):
    """Rows by position, fetched one batch at a time."""

    def __init__(self, spec: RunSpec, rows: Rows) -> None:
        self._rows = rows
        labelling = training_task(spec.task).labelling
        self._label = labelling(spec, rows) if labelling else None

    def _fetch(self, rows: NDArray[np.int64], epochs: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        batch = self._rows.encoded(rows)
        if self._label:
            self._label(batch, epochs)
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


def make_loader(
    rows: Dataset[Any], batch_size: int, device: torch.device, *, num_workers: int = 0, prefetch_factor: int = 2,
    pin_memory: bool = True,
) -> Iterator[Batch]:  # fmt: skip
    """Return global batches in order, without draws from torch's generator.

    Workers are forked with the rows that are already tokenized, so `rows` must be prepared.
    """
    workers: dict[str, Any] = {"prefetch_factor": prefetch_factor, "multiprocessing_context": "fork"}
    loader: DataLoader[Any] = DataLoader(
        rows,
        batch_size=batch_size,
        shuffle=False,
        collate_fn=_collate,
        pin_memory=pin_memory and device.type == "cuda",
        generator=torch.Generator(),
        num_workers=num_workers,
        **(workers if num_workers else {}),
    )
    return iter(loader)
