"""Tensor summaries (norm, sketch, digest), computed on the tensors' own device.

A tensor may arrive in pieces, one per micro-batch and process. Its digest is that of the whole tensor; norm and sketch
are sums in fp64. One row of numbers per tensor travels to the host when all are read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.evidence import SKETCH_SIZE
from plumbline.schema.sketch import BLOCK, RunningSketch, block_salt, element_codes
from plumbline.train.digests import LANES, bits_of, device_lanes, digest_of, host_array, host_arrays, host_lanes

Rows = list[tuple[NDArray[Any], NDArray[Any]]]
"""Numbers, float64 [130], and checksum, int64 [64], of each tensor."""
NUM_SIGNED = 2 * SKETCH_SIZE
_SQUARES, _NOT_FINITE = NUM_SIGNED, NUM_SIGNED + 1
_ROW = NUM_SIGNED + 2
"""Numbers of a tensor on its device: signed sums, sum of squares, and count of values that are not finite."""
_MOST_BLOCKS = 8
"""Blocks that a device sums at once: some 200 MB in fp64."""

_active = 0


def is_summarizing() -> bool:
    """Return whether a check or summary runs, which torch modes must ignore."""
    return _active > 0


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Mark the operations inside as part of a check, not the training."""
    global _active  # noqa: PLW0603 - modes are asked by torch, which passes nothing on
    _active += 1
    try:
        yield
    finally:
        _active -= 1


@contextlib.contextmanager
def summarizing() -> Iterator[None]:
    """Mark the operations inside as part of a summary."""
    with aside(), torch.no_grad():
        yield


@dataclass(frozen=True, slots=True)
class Summary:
    """Norm, sketch and digest of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    norm: float
    sketch: NDArray[np.float64]
    is_finite: bool
    sha256: str


class _OnHost:
    """Numbers of a CPU tensor, from pieces that follow each other."""

    def __init__(self, *, sketched: bool) -> None:
        self._sketch, self._sketched = RunningSketch(), sketched
        self._squares, self._is_finite = 0.0, True
        self.sums = np.zeros(LANES, np.int64)

    def add(self, piece: torch.Tensor, start: int) -> None:
        self.sums += host_lanes(bits_of(piece), start)
        array = host_array(piece)
        flat = array.reshape(-1).astype(np.float64, copy=False)
        if self._sketched:
            self._sketch.add(flat, start)
        # Without the threads of a BLAS, which a busy machine holds up: half of a recorded step was spent in them.
        self._squares += float(np.einsum("i,i->", flat, flat))
        self._is_finite &= bool(np.isfinite(self._squares)) or bool(np.isfinite(array).all())

    def numbers(self) -> NDArray[np.float64]:
        return np.concatenate((self._sketch.signed(), [self._squares, not self._is_finite]))


class DeviceSummary:
    """Numbers of a GPU tensor, accumulated on the device."""

    def __init__(self, device: torch.device, *, sketched: bool = True) -> None:
        self._numbers, self._sketched = torch.zeros(_ROW, dtype=torch.float64, device=device), sketched
        self.sums = torch.zeros(LANES, dtype=torch.int64, device=device)

    def add(self, piece: torch.Tensor, start: int) -> None:
        """Add values that start at element `start` of the whole tensor."""
        self.sums += device_lanes(piece, start)
        flat, first = piece.reshape(-1), 0
        while first < len(flat):
            block, place = divmod(start + first, BLOCK)
            whole = 0 if place else min((len(flat) - first) // BLOCK, _MOST_BLOCKS)
            size = whole * BLOCK or min(BLOCK - place, len(flat) - first)
            values = flat[first : first + size].double()
            if self._sketched:
                self._sketch(values, block, place, whole or 1)
            self._numbers[_SQUARES] += values.square().sum()
            self._numbers[_NOT_FINITE] += values.isfinite().logical_not().sum()
            first += size

    def _sketch(self, values: torch.Tensor, block: int, place: int, blocks: int) -> None:
        size, device = len(values) // blocks, values.device
        padded = values.new_zeros((blocks, BLOCK + 1))
        padded[:, place : place + size] = values.reshape(blocks, -1)
        sums = padded[:, _places(device)].sum(2)
        order = _orders(device, 1 << (block + blocks).bit_length())[block : block + blocks]
        self._numbers[:NUM_SIGNED] += sums.gather(1, order).sum(0)

    def numbers(self) -> torch.Tensor:
        """Return the accumulated numbers, float64 [130], on the device."""
        return self._numbers


@cache
def _places(device: torch.device) -> torch.Tensor:
    """Return each sketch code's element positions, int64 [128, most], padded."""
    codes = element_codes()
    order, counts = np.argsort(codes, kind="stable"), np.bincount(codes, minlength=NUM_SIGNED)
    places = np.full((NUM_SIGNED, counts.max()), BLOCK)
    places[np.arange(counts.max()) < counts[:, None]] = order
    return torch.from_numpy(places).to(device)


@cache
def _orders(device: torch.device, blocks: int) -> torch.Tensor:
    """Return the permutation of sketch codes for each block, int64 [blocks, 128]."""
    salts = np.array([block_salt(block) for block in range(blocks)])
    return torch.from_numpy(salts[:, None] ^ np.arange(NUM_SIGNED)).to(device)


class TensorSummary:
    """Running summary of one tensor, or of a process's share of it."""

    def __init__(self, value: torch.Tensor, shape: Sequence[int], *, unsigned: bool, sketched: bool) -> None:
        """Start the summary of a tensor of `shape`, of which `value` is a piece."""
        self.shape, self.dtype, self._unsigned = tuple(map(int, shape)), value.dtype, unsigned
        is_on_host = value.device.type == "cpu"
        self._values = _OnHost(sketched=sketched) if is_on_host else DeviceSummary(value.device, sketched=sketched)
        self.size = 0
        """Number of elements so far."""

    def add(self, piece: torch.Tensor, start: int = 0) -> None:
        """Add values that start at element `start`; on the CPU after those before."""
        with summarizing():
            piece = piece.detach()
            if self._unsigned:
                piece = piece + 0.0
            self._values.add(piece, start)
            self.size += piece.numel()

    def row(self) -> tuple[torch.Tensor | NDArray[Any], torch.Tensor | NDArray[Any]]:
        """Return numbers, float64 [130], and checksum, int64 [64], on the tensor's device."""
        return self._values.numbers(), self._values.sums

    def read(self, numbers: NDArray[np.float64], sums: NDArray[np.int64]) -> Summary:
        """Return the summary of the whole tensor from its row."""
        return Summary(
            shape=self.shape, dtype=self.dtype, norm=math.sqrt(numbers[_SQUARES]),
            sketch=numbers[:SKETCH_SIZE] - numbers[SKETCH_SIZE:NUM_SIGNED], is_finite=not numbers[_NOT_FINITE],
            sha256=digest_of(self.dtype, self.shape, sums),
        )  # fmt: skip


def read_rows(tensors: Sequence[TensorSummary], others: Sequence[torch.Tensor] = ()) -> tuple[Rows, list[NDArray[Any]]]:
    """Return the row of each tensor, and other tensors' values; the device is waited for once."""
    with summarizing():
        found = host_arrays([*(each for tensor in tensors for each in tensor.row()), *others])
    rows = iter(found[: 2 * len(tensors)])
    return list(zip(rows, rows, strict=True)), found[2 * len(tensors) :]
