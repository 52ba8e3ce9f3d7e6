"""Digests of tensors, computed on the tensors' own device.

A tensor's digest is the SHA-256 of its dtype, its shape and an exact checksum of its bits. The checksum is a sum of
integers: equal on every device, in any order, and for every split into pieces, so that a few numbers per tensor travel
to the host instead of its bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.digest import digest_json
from plumbline.schema.sketch import keys

LANES = 64
"""Number of sums of one checksum. A moved value changes its lane, or its block of lanes."""
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_KEYED, _GROUPS = 1 << 16, 1 << 12
"""Blocks that have a key of their own, and such groups of blocks, each with a further one: 2^34 words."""
_AT_ONCE = {"cpu": 1 << 12}
"""Blocks that are multiplied at once: in a CPU's cache, and on other devices in 32 MiB."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd factor between tensors, so that exchanged ones differ. Products wrap around."""


def host_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's values as a NumPy array; bf16 becomes fp32."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.cpu().contiguous().numpy())


def host_arrays(tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """Return many tensors' values with one device-to-host copy."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [host_array(tensor) for tensor in tensors]
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    pieces = torch.cat(flat).cpu().split([len(each) for each in flat])
    return [
        host_array(piece.view(tensor.dtype).reshape(tensor.shape))
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]


@cache
def _keys(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return odd factors of blocks [65536, 1] and of groups [4096], int64."""
    blocks, groups = (torch.from_numpy(each.copy()).to(device) for each in (keys(1, _KEYED)[0], keys(_GROUPS, 1)[:, 0]))
    return blocks[:, None], groups


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of an FSDP2 shard."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach()


def _weighed(blocks: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the sum of blocks, each times its factor, int64 [64]."""
    if blocks.device.type == "cpu":  # torch's own threads cost more than they save
        return torch.from_numpy(np.einsum("ij,ik->k", factors.numpy(), blocks.numpy()))
    return (blocks * factors).sum(0)


def lanes(tensor: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Return the checksum of values that begin at element `start` of a tensor, int64 [64].

    A word is multiplied by the key of its block of 64, and added to its lane. Single changes always show, as odd
    factors lose no bit; the checksums of all pieces add up to the whole's.
    """
    words = tensor.contiguous().reshape(-1).view(_WORDS[tensor.element_size()])
    by_block, by_group = _keys(tensor.device)
    total = torch.zeros(LANES, dtype=torch.int64, device=tensor.device)
    first, at_once = 0, _AT_ONCE.get(tensor.device.type, _KEYED)
    while first < len(words):
        group, block = divmod((start + first) // LANES, _KEYED)
        place, left = (start + first) % LANES, len(words) - first
        if place or left < LANES:
            size = min(LANES - place, left)
            piece = words.new_zeros((1, LANES))
            piece[0, place : place + size] = words[first : first + size]
        else:
            size = min(left // LANES, at_once - block % at_once) * LANES
            piece = words[first : first + size].view(-1, LANES)
        total += _weighed(piece, by_block[block : block + len(piece)]) * by_group[group]
        first += size
    return total


def checksum(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the combined checksum of tensors, int64 [64], without device synchronisation."""
    total = torch.zeros(LANES, dtype=torch.int64, device=device)
    for tensor in tensors:
        total = total * _FACTOR + lanes(whole_tensor(tensor)).to(device)
    return total


def digest_of(dtype: torch.dtype, shape: Sequence[int], sums: NDArray[np.int64]) -> str:
    """Return a tensor's digest from its checksum."""
    head = f"{str(dtype).removeprefix('torch.')}|{','.join(map(str, shape))}|"
    return hashlib.sha256(head.encode() + sums.astype("<i8").tobytes()).hexdigest()


def digest_each(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return each tensor's digest, with one device-to-host copy."""
    sums = host_arrays([lanes(tensor.detach()) for tensor in tensors.values()])
    found = zip(tensors.items(), sums, strict=True)
    return {name: digest_of(tensor.dtype, tensor.shape, each) for (name, tensor), each in found}


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of named tensors."""
    return digest_json(digest_each(tensors))


def finite(value: float | None) -> float | None:
    """Return `value`, or `None` if not finite."""
    return value if value is not None and math.isfinite(value) else None
