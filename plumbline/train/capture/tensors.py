"""Tensors of whatever a loop gives its model: names, checksums and samples, without a synchronisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from plumbline.schema.sketch import keys
from plumbline.train.digests import LANES, lanes

_LABELS = frozenset({"label", "labels", "target", "targets", "y"})
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


def is_label(name: str) -> bool:
    """Return whether a field holds labels, by its name."""
    return name.rpartition(".")[2] in _LABELS


def arguments(forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by the names of its signature."""
    try:
        bound = dict(inspect.signature(forward).bind(*given, **named).arguments)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(given)}, **named}
    more = bound.pop("kwargs", {})
    return {**bound, **(more if isinstance(more, dict) else {})}


def checksum_of(value: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Return the exact checksum of integers, whose rows are `first` and the next ones of the batch, int64 []."""
    if value.is_sparse or value.layout != torch.strided:
        value = value.to_dense()
    rows = value.shape[0] if value.dim() else 1
    if not value.numel():
        return torch.zeros((), dtype=torch.int64, device=value.device)
    flat = value.detach().reshape(rows, -1).to(torch.int64)
    # Long rows repeat the keys of their first places, each block with a factor of its own.
    width = min(flat.shape[1], _WIDEST)
    own = torch.from_numpy(keys(first + rows, width)[first:].copy()).to(flat.device)
    blocks = [part * (2 * place + 1) for place, part in enumerate(flat.split(width, dim=1))]
    return torch.stack([(part * own[:, : part.shape[1]]).sum() for part in blocks]).sum()


def sampled(tensors: Iterable[torch.Tensor | None], device: torch.device) -> torch.Tensor:
    """Return the checksum of the first values of some tensors, int64 [64]."""
    total = torch.zeros(LANES, dtype=torch.int64, device=device)
    for tensor in tensors:
        if tensor is not None and tensor.layout == torch.strided and tensor.numel():
            total = total * 31 + lanes(tensor.detach().reshape(-1)[:_WORDS].contiguous()).to(device)
    return total
