"""One pass of a model in fp64 from weights that are equal on every machine: shows its formula without rounding."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from plumbline.schema.captured import Fp64Pass
from plumbline.schema.digest import SHORT_DIGITS, digest_array
from plumbline.schema.sketch import small_sketch
from plumbline.train.capture.tensors import arguments
from plumbline.train.digests import host_array
from plumbline.train.failure import MODULE_ERRORS, described
from plumbline.train.models.dropout import without_dropout
from plumbline.train.portable.fp64 import fp64_arithmetic, hashed
from plumbline.train.proof.isolation import by_owner, mapped, repetition, tensors_in
from plumbline.train.proof.repeated import in_double
from plumbline.train.watch.calls import ModuleCalls, first_tensor

_ROWS = 4
Numbers = tuple[float, ...] | None


def _numbers(value: torch.Tensor) -> Numbers:
    value = value if value.layout == torch.strided else value.to_dense()
    array = host_array(value.double()).reshape(-1)
    found = tuple(map(float, small_sketch(array)))
    return found if all(map(math.isfinite, found)) else None


def _made_weight(name: str, value: torch.Tensor) -> torch.Tensor:
    """Return a value for a parameter, from its name and its own size to a power of two."""
    return (hashed(tuple(value.shape), name, value.device) * _power(value)).requires_grad_(value.requires_grad)


def _power(value: torch.Tensor) -> float:
    """Return the power of two next to the size of a tensor's finite values."""
    finite = value.detach().double()
    finite = finite[finite.isfinite()]
    size = float(finite.square().mean().sqrt()) if finite.numel() else 1.0
    return 2.0 ** round(math.log2(size)) if size and math.isfinite(size) else 2.0**-4


def _portable(value: torch.Tensor, name: str) -> torch.Tensor:
    """Return fp64 values of the same signs, zeros and size that no rounding before the call changes.

    Whole and infinite values, such as those of a mask, stay as they are.
    """
    exact = value.double()
    if not exact.is_floating_point() or bool(((exact == exact.round()) | ~exact.isfinite()).all()):
        return exact
    made = hashed(tuple(value.shape), name, value.device).abs() * exact.sign() * _power(exact)
    return torch.where(exact.isfinite(), made, exact)


def made_input(value: torch.Tensor, name: str) -> torch.Tensor:
    """Return a cut argument with values that are equal on every machine."""
    if value.layout == torch.sparse_coo:
        own = value.coalesce()
        values = made_input(own.values(), name)
        return torch.sparse_coo_tensor(own.indices(), values, own.shape, check_invariants=False).coalesce()
    return _portable(value, name) if value.is_floating_point() else value


def few_rows(given: Any) -> Any:
    """Return copies of a call's arguments, cut where all have equal rows."""
    tensors = tensors_in(given)
    sizes = {each.shape[0] for each in tensors if each.dim()}
    is_square = any(size in each.shape[1:] for size in sizes for each in tensors)  # such as a graph's matrix
    has_rows = len(sizes) == 1 and not is_square

    def few(value: torch.Tensor) -> torch.Tensor:
        is_cut = has_rows and value.dim() and value.layout != torch.sparse_coo
        return (value.detach()[:_ROWS] if is_cut else value.detach()).clone()

    return mapped(given, few)


def fp64_pass(model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Fp64Pass:
    """Return the pass over a few rows of one call's arguments, or why there is none."""
    places = count()
    few, keywords = mapped(few_rows([list(given), named]), lambda value: made_input(value, f"argument {next(places)}"))
    fed = {
        name: digest_array(host_array(value if value.layout == torch.strided else value.to_dense()))[:SHORT_DIGITS]
        for name, value in arguments(model.forward, tuple(few), keywords).items()
        if isinstance(value, torch.Tensor)
    }
    outputs: list[tuple[str, str, Numbers]] = []

    def see(name: str, module: nn.Module, _inputs: Any, value: torch.Tensor) -> None:
        outputs.append((name, type(module).__name__, _numbers(value)))

    calls, weights = ModuleCalls(see), by_owner(model, "named_parameters", _made_weight)
    buffers = by_owner(model, "named_buffers", lambda _, value: in_double(value).clone())
    wanted = {name: weights[name] for name, value in model.named_parameters() if value.requires_grad}
    device = next(iter(weights.values())).device
    try:
        with (
            repetition(model), without_dropout(model), calls.hook(model),
            torch.autocast(device.type, enabled=False), fp64_arithmetic(),
        ):  # fmt: skip
            output = first_tensor(functional_call(model, weights | buffers, tuple(few), keywords, tie_weights=False))
            calls.forward_done()
            slopes: tuple[torch.Tensor | None, ...] = ()
            if output is not None and output.requires_grad:
                slope = hashed(tuple(output.shape), "slope", output.device)
                slopes = torch.autograd.grad(output, list(wanted.values()), slope, allow_unused=True)
    except MODULE_ERRORS as error:
        return Fp64Pass(fed=fed, lost=described(error, 300))
    gradients = tuple(
        (name, None if each is None else _numbers(each)) for name, each in zip(wanted, slopes, strict=False)
    )
    return Fp64Pass(fed=fed, outputs=tuple(outputs), gradients=gradients)
