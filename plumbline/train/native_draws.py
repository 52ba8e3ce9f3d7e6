"""Masks of native dropout: read from the values that a call set to zero, and used again in its definition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from plumbline.schema.proof import Draws

_ATTENTION = "scaled_dot_product_attention"
_DROPOUT = frozenset({"dropout", "dropout_"})


@dataclass
class Draw:
    """One call of dropout, of its own or inside attention."""

    kept: torch.Tensor
    rate: float
    elements: torch.Tensor
    """Number of elements that could be dropped: attention's masked places are none."""
    name: str = ""
    """The innermost proven module around the call."""


def _asked(func: Any, args: Sequence[Any], named: dict[str, Any]) -> tuple[str, float]:
    """Return the kind of a call that draws, and its rate; nothing of any other."""
    name = getattr(func, "__name__", "")
    if name == _ATTENTION:
        return _ATTENTION, float(named.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    if name in _DROPOUT:
        is_training = named.get("training", named.get("train", args[2] if len(args) > 2 else True))
        return "dropout", float(named.get("p", args[1] if len(args) > 1 else 0.5)) if is_training else 0.0
    return "", 0.0


def _generator(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextlib.contextmanager
def _from_state(state: torch.Tensor, device: torch.device) -> Iterator[None]:
    """Draw from `state` on, and give the generator its present state back."""
    present = _generator(device)
    restore = (lambda to: torch.cuda.set_rng_state(to, device)) if device.type == "cuda" else torch.set_rng_state
    restore(state)
    try:
        yield
    finally:
        restore(present)


def _of_attention(func: Any, args: Sequence[Any], named: dict[str, Any], state: torch.Tensor) -> torch.Tensor:
    """Return the mask of an attention call, from one whose values are the columns of the identity.

    The shapes and the generator's `state` are those of the call, so that its kernel draws the same numbers.
    """
    query, key, value = args[:3]
    length, width = key.shape[-2], value.shape[-1]
    pieces = []
    for first in range(0, length, width):
        columns = torch.zeros_like(value)
        count = min(width, length - first)
        places = torch.arange(count, device=value.device)
        columns[..., first + places, places] = 1.0
        with torch.no_grad(), _from_state(state, query.device):
            pieces.append(func(query, key, columns, *args[3:], **named)[..., :count] != 0)
    return torch.cat(pieces, dim=-1)


class NativeDraws(TorchFunctionMode):
    """Mode that reads the mask of each native call that draws; the calls' own values stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Draw] = []
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Read nothing for a while."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def name(self, first: int, name: str) -> None:
        """Name the draws since the place `first` that have no name yet."""
        for draw in self.found[first:]:
            draw.name = draw.name or name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and read its mask if it draws."""
        named = kwargs or {}
        kind, rate = ("", 0.0) if self._is_paused else _asked(func, args, named)
        if not kind:
            return func(*args, **named)
        given = args[0] if args else named["input"]
        before = _generator(given.device)
        read = given.detach().clone() if named.get("inplace") or func.__name__ == "dropout_" else given
        output = func(*args, **named)
        if kind == "dropout" and rate:
            kept = (output.detach() != 0) | (read.detach() == 0)
            self.found.append(Draw(kept, rate, torch.tensor(kept.numel())))
        elif rate:
            kept = _of_attention(func, args, named, before)
            whole = _of_attention(func, args[:4], {**named, "dropout_p": 0.0}, before)
            self.found.append(Draw(kept, rate, whole.sum()))
        return output

    def summary(self) -> tuple[Draws, ...]:
        """Return how many elements each module's calls have kept."""
        counts: dict[tuple[str, float], list[Draw]] = {}
        for draw in self.found:
            counts.setdefault((draw.name or "model", draw.rate), []).append(draw)
        return tuple(
            Draws(
                name=name,
                rate=rate,
                calls=len(own),
                elements=sum(int(draw.elements) for draw in own),
                kept=sum(int(draw.kept.sum()) for draw in own),
            )
            for (name, rate), own in counts.items()
        )


class RepeatedDraws(TorchFunctionMode):
    """Mode in which calls that draw use known masks, one after the other, at the rates that they ask for."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        super().__init__()
        self._draws, self.is_short = iter(draws), False
        """`is_short`: whether a call draws beyond the known masks."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, by its definition if it draws."""
        named = kwargs or {}
        kind, rate = _asked(func, args, named)
        if not rate:
            return func(*args, **named)
        draw = next(self._draws, None)
        if draw is None:
            self.is_short = True
            return args[0] if kind == "dropout" else func(*args[:4], **{**named, "dropout_p": 0.0})
        if kind == "dropout":
            return args[0] * draw.kept / (1 - rate)
        return _attention(args, named, draw.kept, rate)


def _attention(args: Sequence[Any], named: dict[str, Any], kept: torch.Tensor, rate: float) -> torch.Tensor:
    """Return attention by its definition, with a known mask of dropout."""
    query, key, value = args[:3]
    mask = named.get("attn_mask", args[3] if len(args) > 3 else None)
    scale = named.get("scale") or query.shape[-1] ** -0.5
    scores = query @ key.transpose(-2, -1) * scale
    if named.get("is_causal", args[5] if len(args) > 5 else False):
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = functional.softmax(scores, dim=-1) * kept / (1 - rate)
    output: torch.Tensor = weights @ value
    return output
