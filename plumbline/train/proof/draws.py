"""Recover native dropout masks from the zeros in outputs, and from the same draws on other inputs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from plumbline.schema.proof import Draws
from plumbline.train.failure import MODULE_ERRORS
from plumbline.train.watch.summaries import is_summarizing

ATTENTION = "scaled_dot_product_attention"
_DROPOUT = frozenset({"dropout", "dropout_"})
_OF_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_OF_DROPOUT = ("input", "p", "training", "inplace")
_CHANNELS = {"dropout1d": 2, "dropout2d": 0, "dropout3d": 4}
"""Functions that drop whole channels, with the number of dimensions of an input without a batch, if they take such."""
_LEAST_CHANCE = math.log(1e-9)
"""Logarithm of the chance that two rows have equal masks."""
_LEAST_RATE = 1e-12
"""Dropout rate that drops nothing. Attention without dropout is another kernel, which may underflow elsewhere."""


@dataclass
class Draw:
    """One dropout call, as a function or inside attention."""

    kept: torch.Tensor
    rate: float
    elements: torch.Tensor
    """Number of draws that could drop: attention's masked places are none, and a channel that falls whole is one."""
    num_kept: torch.Tensor
    name: str = ""
    """The innermost proven module around the call."""
    alike: torch.Tensor | None = None
    """Whether all rows of the batch have one mask, which chance does not explain."""

    def compare_rows(self, kept: torch.Tensor, elements: torch.Tensor) -> None:
        """Compare the rows of a mask, of which so many elements show."""
        if kept.dim() > 1 and len(kept) > 1 and 0 < self.rate < 1:
            chance = elements / len(kept) * math.log(1 - 2 * self.rate * (1 - self.rate))
            self.alike = (kept == kept[:1]).all() & (chance < _LEAST_CHANCE)


def dropout_of(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, float, dict[str, Any]]:
    """Return a call's kind, dropout rate and arguments by name.

    The kind is attention, dropout, or "" for other functions. Dropout that a library renamed shows by its arguments.
    Alpha dropout sets no zeros, and so is none.
    """
    name = getattr(func, "__name__", "")
    if name == ATTENTION:
        given = {**dict(zip(_OF_ATTENTION, args, strict=False)), **named}
        return ATTENTION, float(given.get("dropout_p", 0.0)), given
    if "alpha" in name or not (name in _DROPOUT or {"p", "training"} <= named.keys()):
        return "", 0.0, {}
    given = {**dict(zip(_OF_DROPOUT, args, strict=False)), **named}
    return "dropout", float(given.get("p", 0.5)) if given.get("training", given.get("train", True)) else 0.0, given


def _drawn(func: Any, kept: torch.Tensor) -> torch.Tensor:
    """Return one element of a mask for each number that was drawn: Dropout1d to 3d draw once a channel."""
    unbatched = _CHANNELS.get(getattr(func, "__name__", ""))
    first = 1 if kept.dim() == unbatched else 2
    return kept if unbatched is None or kept.dim() <= first else kept.flatten(first).any(-1)


def _generator(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextlib.contextmanager
def _replayed(device: torch.device, state: torch.Tensor) -> Iterator[None]:
    """Draw from the generator's `state` on, and restore the generator afterwards."""
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
        yield


def _kept_in_attention(func: Any, given: dict[str, Any], state: torch.Tensor) -> torch.Tensor:
    """Recover the dropout mask of a fused attention call.

    The shapes and the generator's `state` are those of the call, so that its kernel draws the same numbers.
    """
    key, value = given["key"], given["value"]
    length, width = key.shape[-2], value.shape[-1]
    pieces = []
    for first in range(0, length, width):
        columns = torch.zeros_like(value)
        count = min(width, length - first)
        places = torch.arange(count, device=value.device)
        columns[..., first + places, places] = 1.0
        with _replayed(value.device, state):
            pieces.append(func(**{**given, "value": columns})[..., :count] != 0)
    return torch.cat(pieces, dim=-1)


def _of_attention(func: Any, given: dict[str, Any], rate: float, state: torch.Tensor) -> Draw:
    """Return the draw of an attention call, from the generator's `state`."""
    kept = _kept_in_attention(func, given, state)
    whole = _kept_in_attention(func, {**given, "dropout_p": _LEAST_RATE}, state).sum()
    draw = Draw(kept, rate, whole, kept.sum())
    draw.compare_rows(kept, whole)
    return draw


def _kept(
    func: Any, call: tuple[Any, Any], read: torch.Tensor, state: torch.Tensor, output: torch.Tensor
) -> torch.Tensor:
    """Return a dropout call's mask; zeros of its input `read` need the call on ones."""
    (args, named), kept, unknown = call, output.detach() != 0, read.detach() == 0
    if read.is_cuda or unknown.any():  # to ask a GPU would be a wait
        ones = torch.ones_like(read)
        with _replayed(read.device, state):
            again = func(ones, *args[1:], **named) if args else func(**{**named, "input": ones})
        kept |= unknown & (again != 0)
    return kept


def drops(model: nn.Module) -> bool:
    """Return whether the model has any non-zero dropout rate.

    A mode has its price: a function that a library replaced by a wrapper of torch's own is called twice in it, because
    torch hands its own call to the mode by name.
    """
    config = getattr(model, "config", None)
    rates = [value for name, value in vars(config).items() if "dropout" in name] if config is not None else []
    rates += [getattr(each, "p", 0.0) for each in model.modules() if "dropout" in type(each).__name__.lower()]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def undrawn(model: nn.Module, names: set[str]) -> Iterator[Draws]:
    """Yield each module with a dropout rate for which nothing drew: not under its name, nor its parent's."""
    for name, module in model.named_modules():
        is_layer = isinstance(module, nn.Dropout)
        rate = module.p if is_layer else getattr(module, "attention_dropout", 0.0)
        # Only ModernBERT's attention has a rate of its own, and no layer with it.
        if (
            rate
            and not hasattr(module, "dropout")
            and not {name, name.rpartition(".")[0] if is_layer else name} & names
        ):
            yield Draws(name=name, rate=rate, calls=0, elements=0, kept=0)


class NativeDraws(TorchFunctionMode):
    """Torch function mode that records the mask of each native dropout call."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Draw] = []

    def name(self, first: int, name: str) -> None:
        """Assign `name` to the unnamed masks recorded since index `first`."""
        for draw in self.found[first:]:
            draw.name = draw.name or name

    def dropped(self, first: int, value: torch.Tensor, output: torch.Tensor) -> None:
        """Compare the rows that a dropout module leaves of `value`, however it draws."""
        shows = value.detach() != 0
        for draw in self.found[first:]:
            draw.compare_rows((output.detach() != 0) | ~shows, shows.sum())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and record its mask if it applies dropout."""
        named = kwargs or {}
        kind, rate, given = dropout_of(func, args, named)
        if not rate or is_summarizing():
            return func(*args, **named)
        value = given["input" if kind == "dropout" else "value"]
        state = _generator(value.device)
        read = value.detach().clone() if given.get("inplace") or func.__name__ == "dropout_" else value
        output = func(*args, **named)
        with contextlib.suppress(*MODULE_ERRORS):  # a call without its mask is not repeated
            if kind == ATTENTION:
                self.found.append(_of_attention(func, given, rate, state))
            else:
                kept = _kept(func, (args, named), read, state, output)
                drawn = _drawn(func, kept)
                self.found.append(Draw(kept, rate, torch.tensor(drawn.numel()), drawn.sum()))
        return output

    def summary(self) -> tuple[Draws, ...]:
        """Return how many elements each module's dropout calls kept."""
        counts: dict[tuple[str, float], list[Draw]] = {}
        for draw in self.found:
            counts.setdefault((draw.name or "model", draw.rate), []).append(draw)
        return tuple(
            Draws(
                name=name,
                rate=rate,
                calls=len(own),
                elements=sum(int(draw.elements) for draw in own),
                kept=sum(int(draw.num_kept) for draw in own),
                alike=sum(draw.alike is not None and bool(draw.alike) for draw in own),
            )
            for (name, rate), own in counts.items()
        )
