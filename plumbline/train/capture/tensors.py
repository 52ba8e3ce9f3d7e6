"""Tensors of whatever a loop gives its model: names, checksums and samples, without a synchronisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from plumbline.schema.sketch import keys
from plumbline.train.digests import words_of

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
    """Return a call's arguments by the names of its signature, or by place where it has none."""
    method = inspect.unwrap(forward, stop=inspect.ismethod)
    code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
    # The names alone: to bind a signature takes longer than to read the tensors.
    names = code.co_varnames[inspect.ismethod(method) : code.co_argcount] if code is not None else ()
    found: dict[str, Any] = dict(zip(names, given, strict=False))
    if code is not None and (more := given[len(names) :]):
        found["args"] = more
    elif code is None:
        found = {str(place): value for place, value in enumerate(given)}
    return {**found, **named}


def stored(value: torch.Tensor) -> torch.Tensor:
    """Return the values that a tensor stores: all, or those of its non-zero places."""
    if value.layout == torch.strided:
        return value.detach()
    return value.detach().coalesce().values() if value.layout == torch.sparse_coo else value.detach().values()


@cache
def _row_keys(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(keys(1, _WIDEST).copy()).to(device)


def row_marks(value: torch.Tensor) -> torch.Tensor:
    """Return an exact checksum of each row of integers, int64 [rows]."""
    if value.layout != torch.strided:
        value = value.to_dense()
    rows = value.shape[0] if value.dim() else 1
    if not value.numel():
        return torch.zeros(rows, dtype=torch.int64, device=value.device)
    flat, own = value.detach().reshape(rows, -1).to(torch.int64), _row_keys(value.device)
    marks = torch.zeros(rows, dtype=torch.int64, device=value.device)
    # Long rows repeat the keys of their first places, each block with a factor of its own.
    for place, part in enumerate(flat.split(_WIDEST, dim=1)):
        marks += (part * own[:, : part.shape[1]]).sum(1) * (2 * place + 1)
    return marks


def _first(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor's first 64 values, without a copy of the tensor."""
    while not value.is_contiguous():  # `reshape` would copy all of a transposed tensor
        rest = value.numel() // value.shape[0]
        value = value[0] if rest >= _WORDS else value[: -(-_WORDS // rest)].contiguous()
    return value.as_strided((min(value.numel(), _WORDS),), (1,))


@cache
def _factors(sizes: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return factor and lane, int64, of each word of tensors of these sizes in a row."""
    powers = np.array([31], np.int64) ** np.arange(len(sizes))
    lane = np.concatenate([np.arange(size) for size in sizes])
    return torch.from_numpy(np.repeat(powers, sizes)).to(device), torch.from_numpy(lane).to(device)


@torch.no_grad()
def sampled(tensors: Iterable[torch.Tensor | None], device: torch.device) -> torch.Tensor:
    """Return the checksum of the first 64 values of some tensors, int64 [64].

    Tensors of one format are read at once: calls cost more than so few values.
    """
    formats: dict[torch.dtype, list[torch.Tensor]] = {}
    for value in tensors:
        if value is not None and value.layout == torch.strided and value.numel():
            own = value.to_local() if hasattr(value, "to_local") else value  # this process's part of a sharded one
            formats.setdefault(value.dtype, []).append(_first(own))
    total = torch.zeros(_WORDS, dtype=torch.int64, device=device)
    for values in formats.values():
        factors, lane = _factors(tuple(map(len, values)), device)
        total = (total * 31).index_add(0, lane, words_of(torch.cat(values)).to(device) * factors)
    return total
