"""Digests of tensors, computed on the tensors' own device.

A tensor's digest is the SHA-256 of its dtype, its shape and an exact checksum of its bits. The checksum is a sum of
integers: equal on every device, in any order, and for every split into pieces, so that a few numbers per tensor travel
to the host instead of its bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.digest import SHORT_DIGITS, digest_json
from plumbline.schema.sketch import keys

LANES = 64
"""Number of sums of one checksum. A moved value changes its lane, or its block of lanes."""
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_KEYED, _GROUPS = 1 << 16, 1 << 12
"""Blocks that have a key of their own, and such groups of blocks, each with a further one: 2^34 words."""
_IN_CACHE = 1 << 12
"""Blocks that a CPU multiplies at once; a device those of a group, in 32 MiB."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd factor between tensors, so that exchanged ones differ. Products wrap around."""


def host_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's values as a NumPy array; bf16 becomes fp32."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.cpu().numpy(), order="C")


def host_arrays(values: Sequence[torch.Tensor | NDArray[Any]]) -> list[NDArray[Any]]:
    """Return values as NumPy arrays, with one device-to-host copy of all tensors."""
    tensors = [value.detach().contiguous() for value in values if _is_on_device(value)]
    flat = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    pieces = torch.cat(flat).cpu().split([len(each) for each in flat]) if flat else ()
    moved = (piece.view(tensor.dtype).reshape(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True))
    read = (next(moved) if _is_on_device(value) else value for value in values)
    return [value if isinstance(value, np.ndarray) else host_array(value) for value in read]


def _is_on_device(value: torch.Tensor | NDArray[Any]) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


@cache
def _host_keys() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return odd factors of blocks [65536] and of groups of them [4096]."""
    return keys(1, _KEYED)[0].copy(), keys(_GROUPS, 1)[:, 0].copy()


@cache
def _device_keys(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    blocks, groups = (torch.from_numpy(each).to(device) for each in _host_keys())
    return blocks[:, None], groups


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of an FSDP2 shard."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach()


def _spans(num: int, start: int, at_once: int) -> Iterator[tuple[slice, int, slice, int]]:
    """Yield (words, place in the first block, blocks of a group, group) to multiply at once: blocks, or part of one."""
    first = 0
    while first < num:
        (block, place), left = divmod(start + first, LANES), num - first
        is_part = place or left < LANES
        size = min(LANES - place, left) if is_part else min(left // LANES, at_once - block % at_once) * LANES
        group, block = divmod(block, _KEYED)
        yield slice(first, first + size), place, slice(block, block + max(size // LANES, 1)), group
        first += size


def _folded(words: Any) -> Any:
    """Return words with the high half of each of 8 bytes folded into its low half.

    A sign is the highest bit, of which a product with an odd key keeps one: an even number of them would vanish.
    """
    return words ^ ((words >> 32) & 0xFFFFFFFF) if words.itemsize == 8 else words


def words_of(flat: torch.Tensor) -> torch.Tensor:
    """Return the bits of a tensor's values as integers of their size, [elements]."""
    words: torch.Tensor = _folded(flat.view(_WORDS[flat.element_size()]))
    return words


def host_lanes(array: NDArray[Any], start: int = 0) -> NDArray[np.int64]:
    """Return the checksum of a CPU tensor's values, int64 [64]; torch's own threads cost more than they save."""
    words = np.ascontiguousarray(array).reshape(-1).view(f"i{array.itemsize}")
    (by_block, by_group), total = _host_keys(), np.zeros(LANES, np.int64)
    for span, place, blocks, group in _spans(len(words), start, _IN_CACHE):
        piece = _folded(words[span])
        if len(piece) < LANES:
            total[place : place + len(piece)] += piece * (by_block[blocks] * by_group[group])
        else:
            total += np.einsum("i,ik->k", by_block[blocks], piece.reshape(-1, LANES)) * by_group[group]
    return total


def device_lanes(tensor: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Return the same checksum, int64 [64], computed by torch on the tensor's device."""
    words = tensor.contiguous().reshape(-1).view(_WORDS[tensor.element_size()])
    by_block, by_group = _device_keys(tensor.device)
    total = torch.zeros(LANES, dtype=torch.int64, device=tensor.device)
    for span, place, blocks, group in _spans(len(words), start, _KEYED):
        piece = _folded(words[span])
        if len(piece) < LANES:
            total[place : place + len(piece)] += piece * (by_block[blocks, 0] * by_group[group])
        else:
            total += (piece.view(-1, LANES) * by_block[blocks]).sum(0) * by_group[group]
    return total


def bits_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a CPU tensor's values, or its bits where NumPy has no such format."""
    return np.asarray((tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy())


def lanes(tensor: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Return the checksum of values that begin at element `start` of a tensor, int64 [64].

    A word is multiplied by the keys of its block of 64, and added to its lane. Single changes always show, as odd
    factors lose no bit; the checksums of all pieces add up to the whole's.
    """
    if tensor.device.type == "cpu":
        return torch.from_numpy(host_lanes(bits_of(tensor), start))
    return device_lanes(tensor, start)


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
    sums = host_arrays([lanes(whole_tensor(tensor)) for tensor in tensors.values()])
    found = zip(tensors.items(), sums, strict=True)
    return {name: digest_of(tensor.dtype, tensor.shape, each) for (name, tensor), each in found}


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of named tensors."""
    return digest_json(digest_each(tensors))


def shared_mark(marks: Sequence[str | None]) -> str:
    """Return the processes' common checksum, or a digest of different ones."""
    return marks[0] if marks[0] is not None and len(set(marks)) == 1 else digest_json(list(marks))[:SHORT_DIGITS]


def finite(value: float | None) -> float | None:
    """Return `value`, or `None` if not finite."""
    return value if value is not None and math.isfinite(value) else None


def read_losses(losses: Iterable[torch.Tensor]) -> list[float]:
    """Return the values of many losses with one device-to-host copy."""
    values = [loss.double() for loss in losses]
    return [float(value) for value in torch.stack(values).cpu().tolist()] if values else []
