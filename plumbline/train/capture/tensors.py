"""Tensors of whatever a loop gives its model: names, checksums and samples, without a synchronisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from plumbline.schema.sketch import keys
from plumbline.train.digests import LANES, lanes

_WIDEST = 1 << 12
_WORDS = 64


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of all tensors in a mapping or sequence, by keys and places.

    By custom the last entry of a pair is the label.
    """
    if isinstance(value, torch.Tensor):
        yield name or "batch", value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from named_tensors(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for place, entry in enumerate(value):
            own = "labels" if not name and len(value) == 2 and place == 1 else str(place)
            yield from named_tensors(entry, f"{name}.{own}" if name else own)


def arguments(forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by the names of its signature."""
    try:
        bound = dict(inspect.signature(forward).bind(*given, **named).arguments)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(given)}, **named}
    more = bound.pop("kwargs", {})
    return {**bound, **(more if isinstance(more, dict) else {})}


def stored(value: torch.Tensor) -> torch.Tensor:
    """Return the values that a tensor stores: all, or those of its non-zero places."""
    if value.layout == torch.strided:
        return value.detach()
    return value.detach().coalesce().values() if value.layout == torch.sparse_coo else value.detach().values()


def row_marks(value: torch.Tensor) -> torch.Tensor:
    """Return an exact checksum of each row of integers, int64 [rows]."""
    if value.layout != torch.strided:
        value = value.to_dense()
    rows = value.shape[0] if value.dim() else 1
    if not value.numel():
        return torch.zeros(rows, dtype=torch.int64, device=value.device)
    flat = value.detach().reshape(rows, -1).to(torch.int64)
    # Long rows repeat the keys of their first places, each block with a factor of its own.
    own = torch.from_numpy(keys(1, min(flat.shape[1], _WIDEST)).copy()).to(flat.device)
    blocks = enumerate(flat.split(_WIDEST, dim=1))
    return torch.stack([(part * own[:, : part.shape[1]]).sum(1) * (2 * place + 1) for place, part in blocks]).sum(0)


def sampled(tensors: Iterable[torch.Tensor | None], device: torch.device) -> torch.Tensor:
    """Return the checksum of the first values of some tensors, int64 [64]."""
    total = torch.zeros(LANES, dtype=torch.int64, device=device)
    for tensor in tensors:
        if tensor is not None and tensor.layout == torch.strided and tensor.numel():
            total = total * 31 + lanes(tensor.detach().reshape(-1)[:_WORDS].contiguous()).to(device)
    return total
