"""Log of a captured loop: checksums and numbers of each step, which stay on the device until the record is written."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from plumbline.schema.captured import Fp64Pass, FunctionCalls
from plumbline.schema.digest import SHORT_DIGITS
from plumbline.train.capture.evaluation import FirstEvaluation
from plumbline.train.capture.loop import Loop
from plumbline.train.capture.recorded import RecordedStep
from plumbline.train.capture.tensors import arguments, named_tensors, row_marks, sampled, stored
from plumbline.train.digests import checksum, host_array
from plumbline.train.numerics import digest_states, read_states
from plumbline.train.optimizers import group_rates, held_by
from plumbline.train.watch.calls import first_tensor

_SAMPLED = 16
"""Tensors of which each step sums the first values, spread over the model: what trains, moves some of them."""
_LONGEST, _SUMMED = 1 << 20, 256
_REMEMBERED = 64
"""Number of last outputs that are known as such when they are given again."""


@cache
def _signs(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(8)
    return (torch.randint(0, 2, (_LONGEST,), generator=generator) * 2 - 1).float().to(device)


def float_sketch(value: torch.Tensor) -> torch.Tensor:
    """Return eight signed sums of a tensor's first 2^20 values, fp64, without a synchronisation.

    At most 256 values are summed in fp32. A CPU reads them without torch's threads, which a busy machine holds up.
    """
    flat = stored(value).reshape(-1)[:_LONGEST]
    flat = flat.float() if flat.element_size() < 4 else flat
    width = max(1, min(_SUMMED, -(-len(flat) // 8)))
    if lacking := -len(flat) % (8 * width):
        flat = nn.functional.pad(flat, (0, lacking))
    parts, own = flat.reshape(-1, width), _signs(flat.device)[: len(flat)].reshape(-1, width)
    if flat.device.type == "cpu":
        sums = torch.from_numpy(np.einsum("ij,ij->i", host_array(parts), own.numpy()))
    else:
        sums = (parts * own).sum(1)
    return sums.reshape(8, len(sums) // 8).sum(1, dtype=torch.float64)


@dataclass
class _Pass:
    """One forward pass of a root."""

    marks: dict[str, torch.Tensor] = field(default_factory=dict)
    floats: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: int = 0
    logits: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    is_reached: bool = False


class CapturedStep:
    """Values of one step, most of them still on the device."""

    def __init__(self, run: Loop, log: Steps) -> None:
        self._run, self._log, self.step = run, log, log.num_steps
        self.generators = {name: each[:SHORT_DIGITS] for name, each in digest_states(read_states()).items()}
        self.is_training = all(module.training for module in log.modules)
        self.passes: list[_Pass] = []
        self.logits_dtype = self.loss_dtype = ""
        self.rates: tuple[float, ...] = ()
        self.scale: float | None = float(run.scaler.get_scale()) if run.scaler is not None else None
        self.gradients: torch.Tensor | None = None
        self.weights: torch.Tensor | None = None
        self.loss: torch.Tensor | float | None = None
        self.batch: dict[str, torch.Tensor] = {}
        self.rows = 0
        self.is_updated = self.has_gradient = False
        """Whether an optimizer ran, and whether one of its parameters had a gradient."""
        self.ended = 0.0
        """Seconds of the loop's own since its begin, without the recorder's."""

    def enters(self, key: str, module: nn.Module, given: Any, named: Any) -> None:
        """Store a micro-batch: exact checksums of integers by row, sketches of computed or given floats."""
        found = _Pass()
        self.passes.append(found)
        for name, value in named_tensors(arguments(module.forward, given, named)):
            full = f"{key}.{name}" if key else name
            found.rows = found.rows or (value.shape[0] if value.dim() else 1)
            if self._log.is_output(value):
                continue  # such as a generated image, or a state that is carried on: no data
            if value.is_floating_point() or value.is_complex():
                found.floats[full] = float_sketch(value.real if value.is_complex() else value)
            else:
                found.marks[full] = row_marks(value)

    def leaves(self, output: Any) -> None:
        """Store the logits and the model's own loss; wait for the backward pass."""
        found = self.passes[-1]
        logits, loss = first_tensor(output), getattr(output, "loss", None)
        if logits is not None:
            self.logits_dtype = str(logits.dtype).removeprefix("torch.")
            found.logits = sampled([logits], logits.device)
        if isinstance(loss, torch.Tensor):
            found.loss, self.loss_dtype = loss.detach(), str(loss.dtype).removeprefix("torch.")
        reached = loss if isinstance(loss, torch.Tensor) and loss.requires_grad else logits
        if reached is not None and reached.requires_grad:
            reached.register_hook(lambda _: setattr(found, "is_reached", True))

    def updates(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Store rates and a sample of the gradients as an optimizer sees them."""
        if optimizer is not None:
            self.rates += group_rates(optimizer)
            self.has_gradient |= any(value.grad is not None for value in held_by(optimizer))
        elif self._run.rate is not None:
            self.rates += (self._run.rate,)
        gradients = sampled([value.grad for value in self._log.sampled], self._run.ranks.device)
        self.gradients = gradients if self.gradients is None else self.gradients * 31 + gradients

    def ends(self, batch: Any, loss: torch.Tensor | float | None) -> None:
        """Store what the loop names itself, and a sample of the weights."""
        reached = [each for each in self.passes if each.is_reached]
        evaluations = [each for each in self.passes if reached and not each.is_reached]
        self.passes = reached or self.passes
        for each in evaluations:
            self._log.evaluations.append((self.step, _sum(each.marks.values(), self._run.ranks.device)))
        for name, value in named_tensors(batch) if batch is not None else ():
            self.rows = self.rows or (value.shape[0] if value.dim() else 1)
            if not value.is_floating_point():
                self.batch[name] = row_marks(value)
        self.loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        if self.weights is None:
            self.weigh()
        if not self.rates and self._run.optimizers:
            self.rates = tuple(rate for each in self._run.optimizers for rate in group_rates(each))

    @property
    def shown_loss(self) -> torch.Tensor | float | None:
        """Return the loss that the loop names, or that of the model's only pass."""
        return self.loss if self.loss is not None or len(self.passes) != 1 else self.passes[0].loss

    def weigh(self) -> None:
        """Store a sample of the weights behind an update."""
        self.weights = sampled([*self._log.sampled, *self._log.moving], self._run.ranks.device)


def _sum(marks: Any, device: torch.device) -> torch.Tensor:
    return torch.stack(
        [torch.zeros((), dtype=torch.int64, device=device), *(each.sum().to(device) for each in marks)]
    ).sum()


class Steps:
    """All steps so far, with what is known of the whole loop."""

    def __init__(self, run: Loop) -> None:
        self.run = run
        trained = [value for value in run.model.parameters() if value.requires_grad]
        self.sampled = trained[:: max(1, len(trained) // _SAMPLED)]
        """Parameters of which each step sums the first values."""
        floats = [value for value in run.model.buffers() if value.is_floating_point()]
        self.moving = floats[:: max(1, len(floats) // _SAMPLED)]
        several = isinstance(run.model, nn.ModuleDict)
        self.modules = [module for module in run.model.modules() if module is not run.model or not several]
        """All modules of the loop's own."""
        self.steps: list[CapturedStep] = []
        self.full: list[RecordedStep] = []
        self.evaluations: list[tuple[int, torch.Tensor]] = []
        self.first_evaluation = FirstEvaluation()
        self.window: Fp64Pass | None = None
        self.functions: FunctionCalls | None = None
        self._outputs = deque[weakref.ref[torch.Tensor]](maxlen=_REMEMBERED)
        self.start_weights = sampled([*self.sampled, *self.moving], run.ranks.device)
        self.kept: tuple[int, torch.Tensor] | None = None
        """(step, checksum of all weights before it), if the step before was recorded."""

    @property
    def num_steps(self) -> int:
        """Return the number of complete steps."""
        return len(self.steps)

    def remember(self, output: Any) -> None:
        """Remember a model's outputs as long as the loop keeps them."""
        tensors = (value for _, value in named_tensors(output))
        self._outputs.extend(weakref.ref(value) for value in tensors if value.layout == torch.strided)

    def is_output(self, value: torch.Tensor) -> bool:
        """Return whether a tensor has the values of an earlier output, also cut off its graph."""
        known = (each() for each in self._outputs)
        place = value.data_ptr() if value.layout == torch.strided else 0
        return bool(place) and any(each is not None and each.data_ptr() == place for each in known)

    def whole(self) -> torch.Tensor:
        """Return the checksum of all weights."""
        return checksum([value for value in self.run.model.parameters() if value.numel()], self.run.ranks.device)

    def compare_state(self) -> None:
        """Compare the weights with those behind the step before, if that was recorded."""
        if self.kept is not None and self.kept[0] == self.num_steps:
            is_moved = bool((self.kept[1] != self.whole()).any())
            if is_moved and self.full:
                self.full[-1].moved()
        self.kept = None

    def evaluated(self, module: nn.Module, given: Any, named: Any) -> None:
        """Store the inputs' checksum of a pass without gradients."""
        tensors = [value for _, value in named_tensors(arguments(module.forward, given, named))]
        marks = [row_marks(value) for value in tensors if not value.is_floating_point() and not value.is_complex()]
        self.evaluations.append((self.num_steps, _sum(marks, self.run.ranks.device)))
