"""Repeat module calls in fp64, with known dropout masks or random rounding.

How far roundings move a result says what is lost where its terms cancel, whatever the operations are: each number that
enters or leaves one is nudged up or down by chance (D. S. Parker, "Monte Carlo Arithmetic", 1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from plumbline.train.proof.draws import ATTENTION, Draw, dropout_of
from plumbline.train.proof.isolation import tensors_in

_TINY = 1e-300
_NUM_CHANCES = 2**20 + 7
"""A prime: no row of a tensor meets the same chances as the next one."""


MOST_TRIALS = 16
"""Maximum number of trials of what roundings move: a weight of attention may change sides in one of a few."""

NUMBER_TRIALS = 4
"""Trials of a single number, such as a loss of nearly zero: in one of them it may move by nearly nothing. Of honest
losses of 16 rows 25 to 38 of 1,000 were beyond their limit after one trial, and none after four."""

_HUGE = 1e30
"""More than any number but those that mask others."""


class _Nudge(torch.autograd.Function):
    """Autograd function that perturbs a value and, independently, its gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the perturbed value."""
        ctx.change = change
        return change(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the perturbed gradient."""
        return ctx.change(gradients[0]), None


@cache
def chances(rounded: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random roundings of dtype `rounded`: relative, and absolute near zero.

    The cache is cleared behind each proven step: 33 MB would count in the peak memory of the steps that are measured.
    """
    evenly = torch.rand(_NUM_CHANCES, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    evenly = evenly.repeat(2).to(device)  # a tensor's own begin anywhere in the first half
    numbers = torch.finfo(rounded)
    # A kernel may flush what is below the smallest normal number to zero, but for fp16, where much of a gradient is.
    spacing = numbers.eps if rounded == torch.float16 else 1.0
    return numbers.eps * evenly, 2 * numbers.smallest_normal * spacing * evenly


class Repeated(TorchFunctionMode):
    """Torch mode that replays recorded dropout masks in call order."""

    def __init__(self, draws: Sequence[Draw], rounded: torch.dtype | None = None, trial: int = 0) -> None:
        """Create the mode; `rounded` is the dtype to imitate, if any, with other chances in each `trial`."""
        super().__init__()
        self._draws, self._rounded, self.is_short = iter(draws), rounded, False
        self._is_short_format = rounded in (torch.bfloat16, torch.float16)
        """`is_short`: whether a call draws beyond the known masks."""
        self._place = trial * _NUM_CHANCES // MOST_TRIALS
        """That of the next chance."""

    def drew(self) -> None:
        """Note a draw beyond the known masks, which no repetition equals."""
        self.is_short = True

    def entered(self, value: torch.Tensor) -> torch.Tensor:
        """Return an input in fp64, with random rounding if requested."""
        return self._nudged(in_double(value))

    def _nudged(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor with each element randomly rounded, if rounding is requested."""
        if self._rounded is None or not value.is_floating_point():
            return value
        nudged: torch.Tensor = _Nudge.apply(value, self._changed)  # type: ignore[no-untyped-call]
        return nudged

    def _changed(self, value: torch.Tensor) -> torch.Tensor:
        assert self._rounded is not None  # noqa: S101 - asked before
        num, first = value.numel(), self._place % _NUM_CHANCES
        self._place += num
        share, least = (
            (each if num <= _NUM_CHANCES else each.repeat(-(-(first + num) // len(each))))[first : first + num]
            for each in chances(self._rounded, value.device)
        )
        # A mask's lowest number is no result that is rounded: sums with it are equal, whatever is added.
        nudged = torch.addcmul(value, value.clamp(-_HUGE, _HUGE), share.view(value.shape))
        return nudged.addcmul_(value.sign(), least.view(value.shape))  # an exact zero is not rounded

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, replaying its dropout mask and adding roundings if requested.

        A conversion to fp32 keeps fp64, as those of a norm that sums in fp32 whatever it is given.
        """
        named = kwargs or {}
        widens = self._is_short_format and _is_exact(args) and _is_to_fp32(func, args, named)
        if _is_exact(args):
            func = torch.Tensor.double if getattr(func, "__name__", "") == "float" else func
            args = tuple(torch.float64 if each is torch.float32 else each for each in args)
            named = {key: torch.float64 if each is torch.float32 else each for key, each in named.items()}
        kind, rate, given = dropout_of(func, args, named)
        draw = next(self._draws, None) if rate else None
        self.is_short |= bool(rate) and draw is None
        if kind == "dropout":
            given_value: torch.Tensor = given["input"]
            return given_value if draw is None else self._nudged(_dropped(given_value, draw.kept, rate))
        if kind == ATTENTION and (self._rounded or draw is not None):
            with self if self._rounded else nullcontext():
                return _attention(given, None if draw is None else draw.kept, rate)
        name = getattr(func, "__name__", "") if self._rounded else ""
        if name in _STEPS and (name != "cross_entropy" or _are_classes(args, named)):
            with self:
                return _STEPS[name](*args, **named)
        result = func(*args, **named)
        if widens or (self._is_short_format and name not in _CONVERSIONS and _are_wide([args, named])):
            return _widened(result)
        if name in _SLOPES:
            (value,) = (*args, *named.values())[:1]
            with self:
                # Without a change of the value: the gradient is computed from the result as it was rounded.
                result = self._nudged(result.detach())
                return result + (value - value.detach()) * _SLOPES[name](result)
        return self._nudged(result) if isinstance(result, torch.Tensor) and not _is_view(result, args) else result


def _is_exact(args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64


def _is_to_fp32(func: Any, args: Sequence[Any], named: dict[str, Any]) -> bool:
    """Return whether a call converts to fp32 by itself."""
    given = (each is torch.float32 for each in (*args[1:], *named.values()))
    return getattr(func, "__name__", "") == "float" or any(given)


_CONVERSIONS = frozenset({"to", "type", "type_as", "bfloat16", "half"})


def _are_wide(values: Any) -> bool:
    """Return whether all float tensors are in fp32 within a module of a shorter format, which rounds none of them."""
    floats = [each for each in tensors_in(values) if each.is_floating_point()]
    return bool(floats) and all(hasattr(each, "is_wide") for each in floats)


def _widened(result: Any) -> Any:
    """Mark a result as fp32. A view of it is marked, as a native conversion returns a new tensor."""
    if not isinstance(result, torch.Tensor):
        return result
    wide = result.view_as(result)
    wide.is_wide = True  # type: ignore[attr-defined]
    return wide


def _is_view(result: torch.Tensor, args: Sequence[Any]) -> bool:
    """Return whether a result shares memory with an argument."""
    own = result.untyped_storage().data_ptr()
    return any(isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == own for value in args)


_SLOPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": lambda result: 1 - result * result, "sigmoid": lambda result: result * (1 - result)
}  # fmt: skip
"""Derivatives that torch computes from a function's result, in which they cancel where it is nearly 1."""


def in_double(value: torch.Tensor) -> torch.Tensor:
    """Return a floating-point tensor copied to fp64; others unchanged."""
    return value.detach().double() if value.is_floating_point() else value.detach()


def _softmax(input: torch.Tensor, dim: int = -1, dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:  # noqa: A002
    """Compute softmax in three operations, to expose the sum's rounding to gradients."""
    value = input.to(dtype) if isinstance(dtype, torch.dtype) else input  # not the depth of a warning
    terms = _terms(value, dim)
    return terms / terms.sum(dim, keepdim=True)


def _log_softmax(input: torch.Tensor, dim: int = -1, dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:  # noqa: A002
    """Compute log-softmax in its operations: the sum is at least 1, and rounds although its logarithm may be 0."""
    value = input.to(dtype) if isinstance(dtype, torch.dtype) else input
    shifted = value - value.detach().amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _logsumexp(input: torch.Tensor, dim: int = -1, keepdim: bool = False) -> torch.Tensor:  # noqa: A002
    highest = input.detach().amax(dim, keepdim=True)
    total = highest + (input - highest).exp().sum(dim, keepdim=True).log()
    return total if keepdim else total.squeeze(dim)


def _cross_entropy(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, _: Any = None,  # noqa: A002
    ignore_index: int = -100, __: Any = None, reduction: str = "mean", ___: Any = None, **____: Any,
) -> torch.Tensor:  # fmt: skip
    scores = _log_softmax(input, min(input.dim() - 1, 1))
    return functional.nll_loss(scores, target, weight, ignore_index=ignore_index, reduction=reduction)


def _are_classes(args: Sequence[Any], named: dict[str, Any]) -> bool:
    """Return whether a cross entropy is that of classes: its targets are no probabilities, and it smooths nothing."""
    target, smoothing = (
        named.get(name, args[place] if len(args) > place else None)
        for name, place in (("target", 1), ("label_smoothing", 7))
    )
    return not smoothing and isinstance(target, torch.Tensor) and not target.is_floating_point()


def _layer_norm(
    input: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,  # noqa: A002
    eps: float = 1e-5, *_: Any,
) -> torch.Tensor:  # fmt: skip
    """Compute LayerNorm in its operations, of which the gradient subtracts two means."""
    dims = tuple(range(-len(shape), 0))
    centred = input - input.mean(dims, keepdim=True)
    output = centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    output = output if weight is None else output * weight
    return output if bias is None else output + bias


_STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp, "cross_entropy": _cross_entropy,
    "layer_norm": _layer_norm,
}  # fmt: skip
"""Functions whose single steps round, and cancel in their gradients."""


def _terms(scores: torch.Tensor, dim: int) -> torch.Tensor:
    highest = scores.detach().amax(dim, keepdim=True)
    return (scores - highest.masked_fill(highest == -math.inf, 0.0)).exp()  # a row without any key gets zeros


def _dropped(value: torch.Tensor, kept: torch.Tensor, rate: float) -> torch.Tensor:
    return value * kept / (1 - rate) if rate < 1 else value * 0.0


def _attention(given: dict[str, Any], kept: torch.Tensor | None, rate: float) -> torch.Tensor:
    """Compute attention by its definition, with a known dropout mask."""
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if given.get("enable_gqa"):
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores = query @ key.transpose(-2, -1) * scale
    if given.get("is_causal"):
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    terms = _terms(scores, -1)
    drawn = terms if kept is None else _dropped(terms, kept, rate)
    # Fused kernels divide last, and so compute the gradient of the sum from the rounded output.
    output: torch.Tensor = (drawn @ value) / terms.sum(-1, keepdim=True).clamp_min(_TINY)
    return output
