"""Torch mode in which a training's own operations run in fp64.

Two machines round such a step by some 1e-15 of its numbers, and two formulas differ by 1e-9 and more. A conversion to
fp32 keeps fp64; one to half precision rounds as the training does, and the result is fp64 again. Dropout draws masks
that are equal everywhere; other draws are refused. Native kernels of shorter formats do not run here: proofs judge
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.train.models.dropout import DropoutClock, keep_mask
from plumbline.train.watch.calls import first_tensor
from plumbline.train.watch.summaries import is_summarizing

_HALF = (torch.bfloat16, torch.float16)
_NARROW = (torch.float32, *_HALF)


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
        if torch.Tag.nondeterministic_seeded in func.tags and first_tensor(result) is not None:
            raise RuntimeError(f"{func} draws numbers of this device's own")
        return result

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
