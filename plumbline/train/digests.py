"""Digests and norms of tensors on any device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.digest import digest_array, digest_json

__all__ = ["digest_tensors", "finite", "host_array", "norm"]

_PARALLEL_BYTES = 1 << 24


def host_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's values on the host; bf16 becomes fp32 of equal value."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.cpu().contiguous().numpy())


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of all values by name; hash large sets in threads."""
    arrays = {name: host_array(tensor) for name, tensor in tensors.items()}
    if sum(array.nbytes for array in arrays.values()) < _PARALLEL_BYTES:
        return digest_json({name: digest_array(array) for name, array in arrays.items()})
    with ThreadPoolExecutor(max_workers=8) as pool:
        return digest_json(dict(zip(arrays, pool.map(digest_array, arrays.values()), strict=True)))


def norm(array: NDArray[Any]) -> float:
    """Return the L2 norm in fp64."""
    flat = array.reshape(-1).astype(np.float64)
    return math.sqrt(float(np.dot(flat, flat)))


def finite(value: float | None) -> float | None:
    """Return `value`, or `None` if not finite."""
    return value if value is not None and math.isfinite(value) else None
