"""Digests of a window's step: batch, each module's outputs, gradients, clipping and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.portable_parts import DROPOUT_INPUT
from plumbline.schema.sketch import small_sketch
from plumbline.train.batches import Batch
from plumbline.train.calls import ModuleCalls
from plumbline.train.compat.transformers import attention_function
from plumbline.train.digests import host_array
from plumbline.train.engine import Engine, Observer
from plumbline.train.mantissa import measure_attention
from plumbline.train.portable.leg import short_digest
from plumbline.train.taps import named_gradients

_SAMPLED = 4096
_THREADS = 8


def _sampled(array: NDArray[Any]) -> tuple[float, ...]:
    """Return a small sketch of evenly spaced elements."""
    flat = array.reshape(-1)
    return tuple(map(float, small_sketch(flat[:: max(1, flat.size // _SAMPLED)])))


class ModuleDigests:
    """Digests of each module's outputs, in the order of execution, over the micro-batches of one pass."""

    def __init__(self) -> None:
        self.digests: dict[str, list[str | None]] = {}
        self.sketches: dict[str, tuple[float, ...]] = {}
        self.formats: dict[str, str] = {}
        """Number formats other than fp32."""
        self.calls = ModuleCalls(self._see)

    def _see(self, name: str, module: torch.nn.Module, inputs: Any, value: torch.Tensor) -> None:
        if "dropout" in type(module).__name__.lower() and inputs:
            # What a module computes outside of its children shows in a dropout's input, and a mask in its output.
            self._add(f"{name}{DROPOUT_INPUT}", inputs[0])
        array = self._add(name, value)
        if np.isfinite(array).all():
            self.sketches.setdefault(f"forward {name}", _sampled(array))

    def _add(self, name: str, value: torch.Tensor) -> NDArray[Any]:
        array = host_array(value)
        self.digests.setdefault(name, []).append(short_digest(array))
        if value.dtype != torch.float32:
            self.formats[name] = str(value.dtype).removeprefix("torch.")
        return array

    def named(self) -> tuple[tuple[str, str | None], ...]:
        """Return one digest per module call."""
        return tuple((name, joined(found)) for name, found in self.digests.items())


def joined(digests: list[str | None]) -> str | None:
    """Return one digest of several, `None` if one of them is missing."""
    if len(digests) == 1 or None in digests:
        return None if None in digests else digests[0]
    return digest_json(digests)[:16]


class WindowObserver(Observer):
    """Observer that digests the step, beside the training's own."""

    def __init__(self, engine: Engine, *, is_clipped: bool) -> None:
        self._engine, self._is_clipped = engine, is_clipped
        self.bits: dict[str, int] = {}
        self.outputs = ModuleDigests()
        self.fed: dict[str, list[str | None]] = {}
        self.gradients: tuple[tuple[str, str | None], ...] = ()
        self.clipped_gradient: tuple[tuple[str, str | None], ...] = ()
        self.sketches: list[tuple[str, tuple[float, ...]]] = []

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        """Digest the micro-batch, and measure attention's formats once."""
        for name in (name for name in BATCH_FIELDS if name in local):
            self.fed.setdefault(name, []).append(short_digest(host_array(local[name])))
        if not self.bits and (attend := attention_function(self._engine.bare)) is not None:
            self.bits = measure_attention(attend, self._engine.ranks.device, self._engine.precision)
        self.outputs.calls.feeds()

    def backward_done(self) -> None:
        """Digest the gradients, then scale them by a power of two, so that clipping acts or does not, as required."""
        gradients = named_gradients(self._engine.bare)
        self.gradients = self._digests("gradient", gradients)
        wanted = self._engine.spec.optimizer.max_grad_norm * (2.0 if self._is_clipped else 0.25)
        norm = math.sqrt(sum(float(torch.linalg.vector_norm(value).square()) for value in gradients.values()))
        if math.isfinite(norm) and (norm < wanted if self._is_clipped else norm > wanted):
            factor = 2.0 ** (math.frexp(wanted)[1] - math.frexp(norm or 1.0)[1] + 1)
            for value in gradients.values():
                value.mul_(factor)

    def clipped(self) -> None:
        """Digest the last clipped gradient: the factor of all others is the same."""
        self.clipped_gradient = _digests(dict(list(named_gradients(self._engine.bare).items())[-1:]))

    def weights(self) -> tuple[tuple[str, str | None], ...]:
        """Return the digests of the weights after the step."""
        return self._digests("weight", dict(self._engine.bare.named_parameters()))

    def _digests(self, stage: str, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, str | None], ...]:
        arrays = {name: host_array(value) for name, value in tensors.items()}
        self.sketches += [(f"{stage} {name}", _sampled(array)) for name, array in arrays.items()]
        return _digests(tensors)


def _digests(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, str | None], ...]:
    """Return (name, digest) of tensors, hashed in threads."""
    arrays = [host_array(value) for value in tensors.values()]
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        return tuple(zip(tensors, pool.map(short_digest, arrays), strict=True))
