"""Torch modes that replace a training's operations with portable implementations.

The upper mode (`torch.overrides.TorchFunctionMode`) replaces fused functions by compositions, which autograd then
differentiates; the lower mode (`TorchDispatchMode`) handles every operation of forward, backward and update below
autograd. An operation without a portable form raises `UnportableOperationError`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.train.portable.compositions import bound_compositions, masks
from plumbline.train.portable.operations import BY_CONSTRUCTION, FORMS, PRODUCTS, UnportableOperationError
from plumbline.train.watch.summaries import is_summarizing

_NATIVE = frozenset(name for names in BY_CONSTRUCTION.values() for name in names)
_SILENT = frozenset({"profiler", "prim"})
"""Namespaces of operations that compute nothing."""
_NARROW = (torch.float32, torch.bfloat16, torch.float16)

_MOST_PRODUCTS = 256
"""Largest exponent of plain repeated products; larger ones are squared, as a step of a learning curve may be."""


class _Compositions(TorchFunctionMode):
    """Torch mode that replaces fused functions, including recomputed modules.

    Torch suspends a function mode inside the functions that the mode handles, `backward` among them. Activation
    checkpointing calls modules there; each such call has a mode of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._forms = bound_compositions()
        self._in_backward = False
        self._recomputing: list[contextlib.ExitStack] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = self._forms.get(func)
        if form is not None and not is_summarizing():
            return form(*args, **(kwargs or {}))
        outermost = func is torch.Tensor.backward and not self._in_backward
        self._in_backward |= outermost
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._in_backward &= not outermost

    @contextlib.contextmanager
    def also_recomputed(self) -> Iterator[None]:
        """Enter this mode around modules that the backward pass recomputes."""
        before = register_module_forward_pre_hook(self._enters)
        after = register_module_forward_hook(self._leaves, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enters(self, *_: Any) -> None:
        if self._in_backward:
            self._recomputing.append(contextlib.ExitStack())
            self._recomputing[-1].enter_context(_Compositions())

    def _leaves(self, *_: Any) -> None:
        if self._recomputing:
            self._recomputing.pop().close()


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _widened(value: Any) -> Any:
    """Convert low-precision floats to fp64, including nested lists."""
    if isinstance(value, torch.Tensor):
        return value.to(torch.float64) if value.dtype in _NARROW else value
    if isinstance(value, (list, tuple)):
        return [_widened(item) for item in value]
    return value


def _narrowed(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return [_narrowed(item, dtype) for item in value]


class PortableOperations(TorchDispatchMode):
    """Torch dispatch mode that computes each operation in portable arithmetic."""

    def __init__(self, slices: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._slices = slices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name: str = func.overloadpacket.__name__
        base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        if base in _NATIVE or func.namespace in _SILENT or is_summarizing():
            return func(*args, **kwargs)
        given = list(_tensors((*args, *kwargs.values())))
        if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in given):
            return self._integers(func, args, kwargs)
        target = kwargs.pop("out", args[0] if base != name else None)
        result = _in_fp64(self._form(func, base), args, kwargs, _format(given))
        return result if target is None else _stored(target, result)

    def _form(self, func: Any, base: str) -> Callable[..., Any]:
        if func.namespace == "aten" and base in FORMS:
            return FORMS[base]
        if func.namespace == "aten" and base in PRODUCTS:
            product = PRODUCTS[base]
            return lambda *args, **kwargs: product(*args, slices=self._slices, **kwargs)
        raise UnportableOperationError(str(func))

    @staticmethod
    def _integers(func: Any, args: Any, kwargs: Any) -> Any:
        """Run an integer operation natively; raise if its result is floating-point."""
        result = func(*args, **kwargs)
        if any(tensor.is_floating_point() or tensor.is_complex() for tensor in _tensors([result])):
            raise UnportableOperationError(str(func), "on whole numbers")
        return result


def _format(tensors: list[torch.Tensor]) -> torch.dtype:
    """Return an operation's result dtype, by torch's promotion rules."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    dtypes = {value.dtype for value in floats if value.dim()} or {value.dtype for value in floats}
    return torch.float64 if torch.float64 in dtypes else dtypes.pop() if len(dtypes) == 1 else torch.float32


def _in_fp64(form: Callable[..., Any], args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """Run a portable implementation in fp64, then round once to `dtype`."""
    result = form(*_widened(args), **{key: _widened(value) for key, value in kwargs.items()})
    return result if dtype == torch.float64 or kwargs.get("dtype") is not None else _narrowed(result, dtype)


def _stored(target: Any, result: Any) -> Any:
    if isinstance(target, torch.Tensor):
        return target.copy_(result)
    for place, value in zip(target, result, strict=True):
        place.copy_(value)
    return None


@contextlib.contextmanager
def portable_arithmetic(slices: int) -> Iterator[None]:
    """Run the context in portable arithmetic, with `slices` integers per matmul entry."""
    compositions = _Compositions()
    masks.restart()
    with compositions, PortableOperations(slices), compositions.also_recomputed():
        yield


class PortableFloat(float):
    """Float with reproducible powers: repeated products and IEEE square root.

    Optimizers compute `1 - beta**step` and its root on the host, where `pow` rounds differently per C library.
    """

    def __pow__(self, exponent: Any, modulus: None = None) -> Any:
        """Raise to an integer power, or to 0.5."""
        if exponent == 0.5:
            return PortableFloat(math.sqrt(self))
        if float(exponent) < 0 or float(exponent) != int(exponent):
            raise ValueError(f"no portable form of the power {exponent}")
        result, factor, left = 1.0, float(self), int(exponent)
        if left > _MOST_PRODUCTS:
            while left:
                result, factor, left = result * factor if left & 1 else result, factor * factor, left >> 1
            return PortableFloat(result)
        for _ in range(left):
            result *= factor
        return PortableFloat(result)

    def __rsub__(self, other: Any) -> Any:
        """Return `other - self` as a `PortableFloat`, so later roots stay portable."""
        return PortableFloat(float(other) - float(self))


SCALES = "_step_supports_amp_scaling"
"""Attribute of torch's fused optimizers, to which loss scaling gives its scale."""


def make_portable(optimizer: torch.optim.Optimizer) -> None:
    """Switch an optimizer to its plain implementation with portable betas."""
    if hasattr(optimizer, SCALES):
        setattr(optimizer, SCALES, False)
    for group in optimizer.param_groups:
        for name in ("foreach", "fused"):
            if name in group:
                group[name] = False
        if "betas" in group:
            group["betas"] = tuple(PortableFloat(value) for value in group["betas"])
