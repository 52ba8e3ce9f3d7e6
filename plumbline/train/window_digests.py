"""Digests of one portable step: batch, module outputs, gradients, clipping, weights."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from numpy.typing import NDArray

from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.portable_parts import DROPOUT_INPUT, DROPOUT_MASK
from plumbline.schema.sketch import small_sketch
from plumbline.train.batches import Batch
from plumbline.train.digests import host_array
from plumbline.train.portable.steps import Digested, joined, short_digest
from plumbline.train.recorder import Book, Stage, Tensors

_SAMPLED = 4096
_THREADS = 8


def _digested(array: NDArray[Any]) -> Digested:
    """Return an array's digest, and a small sketch of evenly spaced elements."""
    digest, flat = short_digest(array), array.reshape(-1)
    few = flat[:: max(1, flat.size // _SAMPLED)]
    return Digested(digest, None if digest is None else tuple(map(float, small_sketch(few))))


class ModuleDigests(Book[Digested]):
    """Book of one pass: digests of all tensors, in execution order."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, list[Digested]] = {}
        self._fed: dict[str, list[str | None]] = {}
        self.formats: dict[str, str] = {}
        """Number formats other than fp32."""

    def see(self, name: str, module: torch.nn.Module, inputs: Any, value: torch.Tensor) -> None:
        """Digest a module's output, and what a dropout gets and drops."""
        if "dropout" in type(module).__name__.lower() and inputs:
            # What a module computes outside of its children shows in a dropout's input.
            self._add(f"{name}{DROPOUT_INPUT}", inputs[0])
            rate: Any = getattr(module, "p", None)
            if module.training and rate:
                self._add(f"{name}{DROPOUT_MASK}", (value == 0).float())
        self._add(name, value)

    def _add(self, name: str, value: torch.Tensor) -> None:
        self._found.setdefault(name, []).append(_digested(host_array(value)))
        if value.dtype != torch.float32:
            self.formats[name] = str(value.dtype).removeprefix("torch.")

    def feeds(self, local: Batch) -> None:
        """Digest the fields of a micro-batch."""
        for name in (name for name in BATCH_FIELDS if name in local):
            self._fed.setdefault(name, []).append(short_digest(host_array(local[name])))
        super().feeds(local)

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """Do nothing: recomputed modules are digested too."""

    def fed(self) -> tuple[tuple[str, str | None], ...]:
        """Return one digest for each field of the batch."""
        return tuple((name, joined(found)) for name, found in self._fed.items())

    def end(self) -> dict[str, Digested]:
        """Return one digest per module call, with its first sketch."""
        sketches = {
            name: next((each.sketch for each in found if each.sketch is not None), None)
            for name, found in self._found.items()
            if not name.endswith((DROPOUT_INPUT, DROPOUT_MASK))
        }
        digests = {name: joined([each.digest for each in found]) for name, found in self._found.items()}
        return {name: Digested(digest, sketches.get(name)) for name, digest in digests.items()}

    def keep(self, stage: Stage, tensors: Tensors) -> dict[str, Digested]:
        """Return digest and sketch of each tensor, hashed in threads.

        Of clipped gradients the last is digested alone: the factor of all others is the same.
        """
        names = list(tensors)[-1:] if stage == "clipped" else list(tensors)
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            arrays = [host_array(tensors[name]) for name in names]
            return dict(zip(names, pool.map(_digested, arrays), strict=True))


def scale_gradients(gradients: Tensors, max_norm: float, *, is_clipped: bool) -> None:
    """Scale gradients by a power of two, to control clipping."""
    wanted = max_norm * (2.0 if is_clipped else 0.25)
    norm = math.sqrt(sum(float(torch.linalg.vector_norm(value).square()) for value in gradients.values()))
    if math.isfinite(norm) and (norm < wanted if is_clipped else norm > wanted):
        factor = 2.0 ** (math.frexp(wanted)[1] - math.frexp(norm or 1.0)[1] + 1)
        for value in gradients.values():
            value.mul_(factor)
