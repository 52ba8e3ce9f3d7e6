"""SHA-256 digests and norms of tensors on any device."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.digest import ArrayDigest, digest_array, digest_json

_PARALLEL_BYTES = 1 << 24
_MOST_BYTES = 1 << 29
"""Maximum size of a device's tensors that wait in host memory; a larger tensor waits alone."""
_THREADS = 8


def host_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's values as a NumPy array; bf16 becomes fp32."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.cpu().contiguous().numpy())


def _host_copy(tensor: torch.Tensor) -> NDArray[Any]:
    """Copy a tensor to host memory, pinned for CUDA tensors."""
    tensor = tensor.detach()
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return np.asarray(host.copy_(tensor).numpy())


class HashThreads:
    """Threads that hash GPU tensors, with a limit on copied bytes."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._changed = threading.Condition()
        self._waiting = 0

    def start(self, digest: ArrayDigest, piece: torch.Tensor, after: Future[None] | None) -> Future[None]:
        """Copy a tensor's piece to the host, and queue its hashing."""
        size = piece.numel() * max(piece.element_size(), 4 if piece.dtype == torch.bfloat16 else 1)
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._waiting + size <= _MOST_BYTES)
            self._waiting += size
        self._pool = self._pool or ThreadPoolExecutor(max_workers=_THREADS)
        return self._pool.submit(self._hash, digest, _host_copy(piece), size, after)

    def _hash(self, digest: ArrayDigest, values: NDArray[Any], size: int, after: Future[None] | None) -> None:
        try:
            if after is not None:
                after.result()
            digest.add(values)
        finally:
            del values
            with self._changed:
                self._waiting -= size
                self._changed.notify()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class TensorDigest:
    """SHA-256 of a tensor in pieces, equal to the whole's."""

    def __init__(self, threads: HashThreads, dtype: torch.dtype, shape: Sequence[int]) -> None:
        stored = torch.float32 if dtype == torch.bfloat16 else dtype
        self._digest = ArrayDigest(str(stored).removeprefix("torch."), shape)
        self._threads = threads
        self._last: Future[None] | None = None

    def add(self, piece: torch.Tensor) -> None:
        """Add the next piece, hashing CPU pieces at once."""
        if piece.device.type == "cpu":
            self._digest.add(host_array(piece))
        else:
            self._last = self._threads.start(self._digest, piece, self._last)

    def hexdigest(self) -> str:
        """Wait for all pieces, and return the digest."""
        if self._last is not None:
            self._last.result()
        return self._digest.hexdigest()


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of each named tensor; hash large sets in threads."""
    if all(tensor.device.type == "cpu" for tensor in tensors.values()):
        return _digest_arrays({name: host_array(tensor) for name, tensor in tensors.items()})
    with closing(HashThreads()) as threads:
        started = {name: TensorDigest(threads, value.dtype, value.shape) for name, value in tensors.items()}
        for name, value in tensors.items():
            started[name].add(value)
        return digest_json({name: digest.hexdigest() for name, digest in started.items()})


def _digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    if sum(array.nbytes for array in arrays.values()) < _PARALLEL_BYTES:
        return digest_json({name: digest_array(array) for name, array in arrays.items()})
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        return digest_json(dict(zip(arrays, pool.map(digest_array, arrays.values()), strict=True)))


def norm(array: NDArray[Any]) -> float:
    """Return the L2 norm, computed in fp64."""
    flat = array.reshape(-1).astype(np.float64)
    return math.sqrt(float(np.dot(flat, flat)))


def norms(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Return each tensor's L2 norm in fp64, with a single device synchronisation."""
    values = [tensor.detach() for tensor in tensors]
    if all(value.device.type == "cpu" for value in values):
        return [norm(host_array(value)) for value in values]
    squares = torch.stack([value.double().square().sum() for value in values])
    return [math.sqrt(square) for square in host_array(squares).tolist()]


def finite(value: float | None) -> float | None:
    """Return `value`, or `None` if not finite."""
    return value if value is not None and math.isfinite(value) else None
