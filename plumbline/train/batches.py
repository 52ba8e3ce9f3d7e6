"""Training batches in fixed order via DataLoader: micro-batches and packed rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from plumbline.data.staging.order import Order
from plumbline.schema import limits
from plumbline.schema.errors import UnavailableError
from plumbline.schema.spec import RunSpec
from plumbline.train.rows import Rows
from plumbline.train.tasks import training_task

Batch = dict[str, torch.Tensor]
_SHARED = Path("/dev/shm")  # noqa: S108 - its size alone is read


class _Encoded(Dataset[dict[str, NDArray[np.int64]]]):
    """Torch dataset that reads rows by position, one batch at a time."""

    def __init__(self, spec: RunSpec, rows: Rows) -> None:
        self._rows = rows
        self._label = training_task(spec.task).labelling(spec, rows)

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
    """Training rows in order, from batch `first` on, repeating every `cycle` batches."""

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
    """Return a DataLoader of global batches that draws no random numbers.

    Workers are forked with the rows that are already tokenized, so `rows` must be prepared.
    """
    workers: dict[str, Any] = {
        "prefetch_factor": prefetch_factor, "multiprocessing_context": "fork", "timeout": limits.BATCH_SECONDS,
    }  # fmt: skip
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
    return _waited(iter(loader), num_workers) if num_workers else iter(loader)


def _waited(batches: Iterator[Batch], num_workers: int) -> Iterator[Batch]:
    """Yield the workers' batches; raise `UnavailableError` for one that does not arrive.

    A worker that finds no room in shared memory prints so, and torch waits for its batch for ever.
    """
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            # torch says which: a timeout of its own, or a worker that a signal ended.
            if "DataLoader" not in str(error):
                raise
            where, hint = f"speed.data_workers = {num_workers}", _shared_memory_hint()
            what = f"no batch arrived within {limits.BATCH_SECONDS} s, or a worker was killed"
            raise UnavailableError(what, where=where, hint=hint) from error
        yield batch


def _shared_memory_hint() -> str:
    if not _SHARED.is_dir():
        return "0 needs no other process: macOS ends a forked one that calls its own libraries"
    room = shutil.disk_usage(_SHARED).total >> 20
    return f"batches travel through {_SHARED}, which has {room} MiB here: enlarge it (docker run --shm-size=2g)"


def of_probe(spec: RunSpec, world: int = 1) -> RunSpec:
    """Return the spec with the probe's micro-batch size for `world` processes.

    The spec alone decides, so that every machine adds up the same parts in the same order.
    """
    most = spec.probe.micro_batch if spec.probe else None
    if most is None:
        return spec
    rows = spec.batch_size // world
    parts = next(parts for parts in range(-(-rows // most), rows + 1) if rows % parts == 0)
    return in_parts(spec, parts)


def in_parts(spec: RunSpec, parts: int) -> RunSpec:
    """Return the spec with `parts` micro-batches per step."""
    # Not validated: the parts of several processes may be more than a suite may ask for.
    optimizer = spec.optimizer.model_copy(update={"accumulation_steps": parts})
    return spec.model_copy(update={"optimizer": optimizer})


@dataclass(frozen=True, slots=True)
class Packing:
    """Positions of a batch's tokens in packed rows, int64 [packed rows, length]."""

    source: torch.Tensor
    """Index of each token in the flattened batch; the batch's size for padding."""
    texts: torch.Tensor
    """Row of each token in the batch, counted from 1; 0 for padding."""
    rows: int

    def to(self, device: torch.device) -> Packing:
        """Return the packing, moved to a device."""
        moved = [each.to(device, non_blocking=True) for each in (self.source, self.texts)]
        return Packing(moved[0], moved[1], self.rows)

    @property
    def positions(self) -> torch.Tensor:
        """Return the position of each token within its own text."""
        return self.source % self.source.shape[1]

    def pack(self, values: torch.Tensor, padding: int) -> torch.Tensor:
        """Move a batch field, [rows, length], into packed rows."""
        return torch.cat((values.reshape(-1), values.new_full((1,), padding)))[self.source]

    def unpack(self, values: torch.Tensor) -> torch.Tensor:
        """Move packed values, [packed rows, length, ...], back to batch rows."""
        length, inner = self.source.shape[1], values.shape[2:]
        flat = values.new_zeros((self.rows * length + 1, *inner))
        flat[self.source.reshape(-1)] = values.reshape(-1, *inner)
        return flat[:-1].reshape(self.rows, length, *inner)


def pack_rows(mask: torch.Tensor) -> Packing:
    """Pack each text of a batch into the first row with room."""
    rows, length = mask.shape
    tokens = np.flatnonzero(mask.numpy())
    counts = np.bincount(tokens // length, minlength=rows)
    used: list[int] = []
    starts = np.zeros(rows, np.int64)
    for row, count in enumerate(counts.tolist()):
        place = next((place for place, held in enumerate(used) if held + count <= length), len(used))
        if place == len(used):
            used.append(0)
        starts[row] = place * length + used[place]
        used[place] += count
    # Tokens of a text follow each other: the first one of each row is at the text's start.
    first = np.cumsum(counts) - counts
    places = np.arange(len(tokens)) + np.repeat(starts - first, counts)
    source, texts = np.full(len(used) * length, rows * length), np.zeros(len(used) * length, np.int64)
    source[places], texts[places] = tokens, tokens // length + 1
    shape = len(used), length
    return Packing(torch.from_numpy(source.reshape(shape)), torch.from_numpy(texts.reshape(shape)), rows)
