"""Digests of one window: batch, module outputs, gradients, clipping, weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.portable_parts import DROPOUT_INPUT, DROPOUT_MASK
from plumbline.schema.stage import Stage
from plumbline.train.batches import Batch
from plumbline.train.digests import host_arrays
from plumbline.train.engine import StepOutcome
from plumbline.train.portable.steps import Digested, digested, joined, short_digest
from plumbline.train.watch.recorder import KEPT, Book, Tensors
from plumbline.train.watch.summaries import TensorSummary, read_rows


class ModuleDigests(Book[Digested]):
    """Book of one pass: digests of all tensors, in execution order."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: list[tuple[Stage, str, TensorSummary]] = []
        self._fed: list[tuple[str, torch.Tensor]] = []
        self.formats: dict[str, str] = {}
        """Format of autocast around each module's call; fp64 itself is no operand of autocast."""

    def see(self, name: str, module: torch.nn.Module, inputs: Any, value: torch.Tensor) -> None:
        """Digest a module's output, and what a dropout gets and drops."""
        if "dropout" in type(module).__name__.lower() and inputs:
            # What a module computes outside of its children shows in a dropout's input.
            self._add("forward", f"{name}{DROPOUT_INPUT}", inputs[0])
            rate: Any = getattr(module, "p", None)
            if module.training and rate:
                self._add("forward", f"{name}{DROPOUT_MASK}", (value == 0).float())
        self._add("forward", name, value)
        if torch.is_autocast_enabled(value.device.type):
            self.formats[name] = str(torch.get_autocast_dtype(value.device.type)).removeprefix("torch.")

    def _add(self, stage: Stage, name: str, value: torch.Tensor) -> None:
        summary = TensorSummary(value, value.shape, unsigned=True, sketched=True)
        self._opened.append((stage, name, summary))
        summary.add(value)

    def feeds(self, local: Batch) -> None:
        """Store the fields of a micro-batch."""
        self._fed += [(name, local[name].clone()) for name in BATCH_FIELDS if name in local]
        super().feeds(local)

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """Do nothing: recomputed modules are digested too."""

    def keep(self, stage: Stage, tensors: Tensors) -> None:
        """Digest tensors of a stage.

        Of clipped gradients the last is digested alone: the factor of all others is the same.
        """
        for name in list(tensors)[-1:] if stage == "clipped" else tensors:
            self._add(stage, name, tensors[name])

    def done(self, outcome: StepOutcome, loss: float) -> None:  # noqa: ARG002 - as its base
        """Read all digests from the device."""
        self.kept = self.read()

    def read(self) -> dict[Stage, dict[str, Digested]]:
        """Return one digest per tensor and module, with its sketch."""
        rows, _ = read_rows([summary for _, _, summary in self._opened])
        found: dict[Stage, dict[str, list[Digested]]] = {stage: {} for stage in KEPT}
        for (stage, name, summary), row in zip(self._opened, rows, strict=True):
            found[stage].setdefault(name, []).append(digested(summary.read(*row)))
        return {stage: {name: _of_calls(calls) for name, calls in named.items()} for stage, named in found.items()}

    def fed(self) -> tuple[tuple[str, str | None], ...]:
        """Return one digest for each field of the batch."""
        found: dict[str, list[str | None]] = {}
        for (name, _), array in zip(self._fed, host_arrays([value for _, value in self._fed]), strict=True):
            found.setdefault(name, []).append(short_digest(array))
        return tuple((name, joined(pieces)) for name, pieces in found.items())


def _of_calls(calls: Sequence[Digested]) -> Digested:
    """Return a module's digest and sketch over its calls, one for each micro-batch."""
    sketches = [each.sketch for each in calls if each.sketch is not None]
    total = tuple(map(math.fsum, zip(*sketches, strict=True))) if len(sketches) == len(calls) else None
    return Digested(joined([each.digest for each in calls]), total)


def scale_gradients(gradients: Tensors, max_norm: float, *, is_clipped: bool) -> None:
    """Scale gradients by a power of two, to control clipping."""
    wanted = max_norm * (2.0 if is_clipped else 0.25)
    norm = math.sqrt(sum(float(torch.linalg.vector_norm(value).square()) for value in gradients.values()))
    if math.isfinite(norm) and (norm < wanted if is_clipped else norm > wanted):
        factor = 2.0 ** (math.frexp(wanted)[1] - math.frexp(norm or 1.0)[1] + 1)
        for value in gradients.values():
            value.mul_(factor)
