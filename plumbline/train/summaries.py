"""Tensor summaries (norm, sketch, digest), computed on the tensors' own device.

A tensor may arrive in pieces, one per micro-batch and process. On the CPU its numbers are those of the whole tensor, to
the bit for digest and sketch. On another device norm and sketch are summed there in a fixed order, and one row of
numbers per tensor travels to the host when all are read; only a digest needs the tensor's bytes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.evidence import SKETCH_SIZE
from plumbline.schema.sketch import BLOCK, RunningSketch, block_salt, element_codes
from plumbline.train.digests import HashThreads, TensorDigest, host_array

DigestKind = Literal["signed", "unsigned"]
"""Whether the sign of zero counts."""
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
    """Empty without digests."""


class _OnHost:
    """Norm and sketch of a CPU tensor."""

    def __init__(self) -> None:
        self._sketch, self._squares, self._is_finite = RunningSketch(), 0.0, True

    def add(self, piece: torch.Tensor, start: int) -> None:
        del start  # pieces arrive in order
        array = host_array(piece)
        flat = array.reshape(-1).astype(np.float64, copy=False)
        self._sketch.add(flat)
        self._squares += float(np.dot(flat, flat))
        self._is_finite &= bool(np.isfinite(self._squares)) or bool(np.isfinite(array).all())

    def row(self) -> NDArray[np.float64]:
        found = self._sketch.numbers()
        return np.concatenate((found, np.zeros(SKETCH_SIZE), [self._squares, not self._is_finite]))


class DeviceSummary:
    """Norm and sketch of a GPU tensor, accumulated on the device."""

    def __init__(self, device: torch.device) -> None:
        self.numbers = torch.zeros(_ROW, dtype=torch.float64, device=device)

    def add(self, piece: torch.Tensor, start: int) -> None:
        """Add values that start at element `start` of the whole tensor."""
        flat, first = piece.reshape(-1), 0
        while first < len(flat):
            block, place = divmod(start + first, BLOCK)
            whole = 0 if place else min((len(flat) - first) // BLOCK, _MOST_BLOCKS)
            size = whole * BLOCK or min(BLOCK - place, len(flat) - first)
            values = flat[first : first + size].double()
            padded = values.new_zeros((whole or 1, BLOCK + 1))
            padded[:, place : place + size // (whole or 1)] = values.reshape(whole or 1, -1)
            sums = padded[:, _places(piece.device)].sum(2)
            order = _orders(piece.device, 1 << (block + len(sums)).bit_length())[block : block + len(sums)]
            self.numbers[:NUM_SIGNED] += sums.gather(1, order).sum(0)
            self.numbers[_SQUARES] += values.square().sum()
            self.numbers[_NOT_FINITE] += values.isfinite().logical_not().sum()
            first += size


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


class _Tensor:
    """Running summary of one tensor."""

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, digest: TensorDigest, *,
        is_unsigned: bool,
    ) -> None:  # fmt: skip
        self.shape, self.dtype, self._digest, self._is_unsigned = tuple(map(int, shape)), dtype, digest, is_unsigned
        self.numbers: _OnHost | DeviceSummary = _OnHost() if device.type == "cpu" else DeviceSummary(device)
        self.num_missing = math.prod(self.shape)

    def add(self, piece: torch.Tensor, start: int = 0, *, is_measured: bool = True, is_hashed: bool = True) -> None:
        """Add values that start at element `start`."""
        with summarizing():
            piece = piece.detach()
            if self._is_unsigned:
                piece = piece + 0.0
            if is_measured:
                self.numbers.add(piece, start)
            if is_hashed:
                self.num_missing -= piece.numel()
                self._digest.add(piece)

    def row(self) -> NDArray[np.float64]:
        """Return the accumulated numbers of a CPU tensor."""
        assert isinstance(self.numbers, _OnHost)  # noqa: S101 - others are read together
        return self.numbers.row()

    def sha256(self) -> str:
        return self._digest.hexdigest()


class Summaries:
    """Tensor summaries of one pass, in opening order."""

    def __init__(self, digests: DigestKind) -> None:
        self._kind, self._threads = digests, HashThreads()
        self._tensors: list[_Tensor] = []

    def open(self, value: torch.Tensor, shape: Sequence[int]) -> _Tensor:
        """Start the summary of a tensor of this shape."""
        digest = TensorDigest(self._threads, value.dtype, shape)
        is_unsigned = self._kind == "unsigned" and value.is_floating_point()
        self._tensors.append(_Tensor(shape, value.dtype, value.device, digest, is_unsigned=is_unsigned))
        return self._tensors[-1]

    def rows(self) -> NDArray[np.float64]:
        """Return the numbers of all tensors, float64 [tensors, 130]; synchronises the device."""
        with summarizing():
            on_device = [
                tensor.numbers.numbers for tensor in self._tensors if isinstance(tensor.numbers, DeviceSummary)
            ]
            moved = iter(host_array(torch.stack(on_device)) if on_device else ())
            rows = [each.row() if isinstance(each.numbers, _OnHost) else next(moved) for each in self._tensors]
        return np.stack(rows) if rows else np.zeros((0, _ROW))

    def read(self, rows: NDArray[np.float64] | None = None) -> list[Summary]:
        """Return all summaries, optionally from `rows` summed over processes."""
        rows = self.rows() if rows is None else rows
        summaries = [
            Summary(
                shape=tensor.shape, dtype=tensor.dtype, norm=math.sqrt(row[_SQUARES]),
                sketch=row[:SKETCH_SIZE] - row[SKETCH_SIZE:NUM_SIGNED], is_finite=not row[_NOT_FINITE],
                sha256=tensor.sha256(),
            )
            for tensor, row in zip(self._tensors, rows, strict=True)
        ]  # fmt: skip
        self.close()
        return summaries

    def close(self) -> None:
        """Stop the threads, and drop all tensors."""
        self._threads.close()
        self._tensors = []


def summarize(tensors: Iterable[torch.Tensor], digests: DigestKind) -> list[Summary]:
    """Return the summary of each named tensor."""
    summaries = Summaries(digests)
    try:
        for value in tensors:
            summaries.open(value, value.shape).add(value)
        return summaries.read()
    finally:
        summaries.close()
