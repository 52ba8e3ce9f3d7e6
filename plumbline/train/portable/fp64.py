"""Torch mode in which a training's own operations run in fp64.

Two machines round such a step by some 1e-15 of its numbers, and two formulas differ by 1e-9 and more. A conversion to
fp32 keeps fp64; one to half precision rounds as the training does, and the result is fp64 again. Masks of dropout, and
uniform and normal numbers, are drawn equally everywhere; other draws are refused. Native kernels of shorter formats do
not run here: proofs judge them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.schema.digest import digest_json
from plumbline.train.models.dropout import DropoutClock, keep_mask
from plumbline.train.watch.calls import first_tensor
from plumbline.train.watch.summaries import is_summarizing

_HALF = (torch.bfloat16, torch.float16)
_NARROW = (torch.float32, *_HALF)


def hashed(shape: tuple[int, ...], name: str, device: torch.device) -> torch.Tensor:
    """Return pseudo-random fp64 values in [-1, 1), equal on every device, by the digest of `name`."""
    salt = int(digest_json(name)[:8], 16)
    place = torch.arange(math.prod(shape), dtype=torch.int64, device=device) + salt * 0x9E3779B1
    mixed = place * 0x5851F42D4C957F2D
    mixed = (mixed ^ (mixed >> 29)) * 0x2545F4914F6CDD1D
    return (((mixed >> 33) & 0xFFFFFF).double() / 2**23 - 1.0).reshape(shape)


def _wide(value: Any) -> Any:
    """Convert shorter floats to fp64, including nested lists and names of formats."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in _NARROW else value
    if isinstance(value, (list, tuple)):
        return [_wide(each) for each in value]
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


def _short_scalars(value: Any) -> Any:
    """Convert single numbers to fp32, in which alone a fused update reads its counts and scales."""
    if isinstance(value, torch.Tensor):
        return value if value.dim() else value.float()
    is_counts = isinstance(value, (list, tuple)) and not any(each.dim() for each in value)
    return [each.float() for each in value] if is_counts else value


class Fp64Operations(TorchDispatchMode):
    """Torch dispatch mode that computes each operation in fp64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._masks = DropoutClock(seed=0)
        self._forms: dict[str, Callable[..., Any]] = {
            "bernoulli_": self._bernoulli,
            "native_dropout": self._dropout,
            "_amp_foreach_non_finite_check_and_unscale_": _unscale,
            "_amp_update_scale_": lambda scale, *_: scale,
        }
        """Operations that draw, and those that accept no fp64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(func.overloadpacket.__name__)
        if is_summarizing():
            return func(*args, **kwargs)
        if (form := self._forms.get(name)) is not None:
            return form(*args, **kwargs)
        if name == "_to_copy" and kwargs.get("dtype") in _HALF:
            return func(_wide(args[0]), **kwargs).double()
        if name.startswith("_fused_"):
            return func(*map(_short_scalars, args), **{key: _short_scalars(value) for key, value in kwargs.items()})
        targets = args[:1] if name.endswith("_") and not name.endswith("__") else ()
        named = {key: value if key == "out" else _wide(value) for key, value in kwargs.items()}
        result = func(*targets, *map(_wide, args[len(targets) :]), **named)
        if torch.Tag.nondeterministic_seeded in func.tags and (drawn := first_tensor(result)) is not None:
            drawn.copy_(self._drawn(func, name, drawn, args))
        return result

    def _drawn(self, func: Any, name: str, values: torch.Tensor, args: Any) -> torch.Tensor:
        """Return numbers of a draw's mean and width, which its number and kind decide."""
        kind, label = name.removesuffix("_like"), f"{name} {self._masks.next_layer()}"
        own = hashed(tuple(values.shape), label, values.device)
        given: list[Any] = list(args[:2] if kind == "normal" else args[1:3] if kind in ("normal_", "uniform_") else ())
        first, second = given + [0.0, 1.0][len(given) :]
        if kind in ("randn", "normal", "normal_"):
            found: torch.Tensor = first + second * math.sqrt(3) * own
        elif kind in ("rand", "uniform_"):
            found = first + (second - first) * (own + 1) / 2
        else:
            raise RuntimeError(f"{func} draws numbers of this device's own")
        return found

    def _mask(self, values: torch.Tensor, rate: float) -> torch.Tensor:
        layer = self._masks.next_layer()
        return keep_mask(tuple(values.shape), rate, seed=0, step=0, layer=layer, first_row=0, device=values.device)

    def _bernoulli(self, values: torch.Tensor, kept: float = 0.5, **_: Any) -> torch.Tensor:
        return values.copy_(self._mask(values, 1 - kept))

    def _dropout(self, values: torch.Tensor, rate: float, training: bool | None = True) -> Any:
        mask = self._mask(values, rate if training else 0.0)
        return _wide(values) * mask * (1 / (1 - rate) if training and rate < 1 else 1.0), mask


def _unscale(gradients: list[torch.Tensor], found: torch.Tensor, factor: torch.Tensor) -> None:
    for gradient in gradients:
        found.add_((~gradient.isfinite()).any())
        gradient.mul_(factor)


@contextlib.contextmanager
def fp64_arithmetic() -> Iterator[None]:
    """Run the context in fp64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with sdpa_kernel(SDPBackend.MATH), Fp64Operations():
            yield
    finally:
        torch.set_default_dtype(before)
