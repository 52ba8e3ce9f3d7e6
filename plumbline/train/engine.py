"""One training step, the same for every part: forward, backward, clip, update. An observer may look on."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from plumbline.schema.spec import Precision, RunSpec
from plumbline.train.batches import Batch
from plumbline.train.failure import TrainingFailedError
from plumbline.train.families import in_double, input_fields
from plumbline.train.numerics import autocast
from plumbline.train.optimizing import make_optimizer, make_scaler, make_schedule
from plumbline.train.ranks import Ranks

__all__ = ["Clock", "Engine", "Observer", "Outcome"]


@dataclass
class Outcome:
    """What a step left: its loss over the global batch, as tensors that nobody has waited for yet."""

    losses: list[tuple[torch.Tensor, float]]
    learning_rates: tuple[float, ...]

    def loss(self, ranks: Ranks) -> float:
        """The loss in fp64 over the global batch; waits for the device."""
        return ranks.total(sum(float(loss.detach().double()) * share for loss, share in self.losses))


class Observer:
    """Looks on at a step, or puts something in its place. This one does neither."""

    def starts(self, step: int) -> None:
        """Before anything of the step."""

    def batch(self, batch: Batch) -> Batch:
        """The global batch that this step trains on."""
        return batch

    def feeds(self, local: Batch, micro: int) -> None:
        """Just before the model is called with a micro-batch."""

    def loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - for others to use
        """The loss to go back from."""
        loss: torch.Tensor = outputs.loss
        return loss

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """After each micro-batch's forward pass."""

    def backward_done(self) -> None:
        """Gradients are complete, unscaled and not yet clipped."""

    def clipped(self) -> None:
        """Gradients are as the optimizer will see them."""

    def update(self) -> bool:
        """Whether the observer made the update itself."""
        return False

    def done(self, outcome: Outcome) -> None:
        """After the update."""


class Clock:
    """Told where in the step we are; this one does not listen."""

    def mark(self, name: str) -> None:
        """What came since the last mark was `name`."""


class Engine:
    """A model with its optimizer, schedule and precision, stepped through global batches."""

    def __init__(
        self, spec: RunSpec, model: nn.Module, ranks: Ranks, *, steps: int, precision: Precision, part: str,
        fused: bool = False, observer: Observer | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.spec, self.ranks, self.precision, self.part, self.steps = spec, ranks, precision, part, steps
        self.bare = in_double(model) if precision == "fp64" else model
        self.optimizer = make_optimizer(self.bare, spec.optimizer, fused=fused)
        self.schedule = make_schedule(self.optimizer, spec, steps)
        self.scaler = make_scaler(precision, ranks.device)
        self.model: Any = self.bare
        if ranks.world > 1:
            self.model = DistributedDataParallel(
                self.bare, device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None
            )
        self.observer = Observer() if observer is None else observer
        self.clock = Clock() if clock is None else clock
        self._fields = input_fields(self.bare)
        self._trainable = [value for value in self.bare.parameters() if value.requires_grad]

    def _size(self, labels: torch.Tensor) -> int:
        """How many terms the loss is a mean of."""
        return int((labels != -100).sum()) if self.spec.task == "masked-lm" else len(labels)

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """This process's micro-batches on its device, each with its share of the global batch's loss."""
        local = {name: values[self.ranks.slice(len(values))] for name, values in batch.items()}
        rows, parts = len(local["labels"]), self.spec.optimizer.accumulation_steps
        if rows % parts:
            raise TrainingFailedError(
                f"{parts} micro-batches do not divide the {rows} rows of one process", code="setting", part=self.part
            )
        whole = self._size(batch["labels"])
        shares = [self._size(piece) / whole if whole else 0.0 for piece in local["labels"].split(rows // parts)]
        moved = {name: values.to(self.ranks.device, non_blocking=True) for name, values in local.items()}
        self.clock.mark("host_to_device")
        pieces = {name: values.split(rows // parts) for name, values in moved.items()}
        for place, share in enumerate(shares):
            yield {name: values[place] for name, values in pieces.items()}, share

    def _forward(self, piece: Batch, share: float) -> torch.Tensor:
        with autocast(self.precision, self.ranks.device):
            outputs = self.model(**{name: piece[name] for name in self._fields})
            loss = self.observer.loss(outputs, piece["labels"]) if share else outputs.logits.sum() * 0.0
        self.observer.forward_done(outputs, loss)
        self.clock.mark("forward")
        return loss

    def _quiet(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return a context without all-reduces for every micro-batch but the last.

        It has to hold the forward pass too: there DDP decides whether the backward pass reduces.
        """
        return self.model.no_sync() if self.ranks.world > 1 and not last else contextlib.nullcontext()

    def _backward(self, loss: torch.Tensor, share: float) -> None:
        weight = share * self.ranks.world
        scaled = loss if weight == 1.0 else loss * weight
        if self.scaler:
            scaled = self.scaler.scale(scaled)
        scaled.backward()
        self.clock.mark("backward")

    def _update(self) -> None:
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        self.observer.backward_done()
        torch.nn.utils.clip_grad_norm_(self._trainable, self.spec.optimizer.max_grad_norm)
        self.observer.clipped()
        if self.observer.update():
            return
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def _advance(self) -> None:
        """The next step's learning rate. torch warns where no optimizer moved first, as when loss scaling skips."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule.step()

    def step(self, step: int, batch: Batch) -> Outcome:
        """Train on one global batch."""
        self.observer.starts(step)
        batch = self.observer.batch(batch)
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[tuple[torch.Tensor, float]] = []
        try:
            for micro, (piece, share) in enumerate(self._micro_batches(batch)):
                self.observer.feeds(piece, micro)
                with self._quiet(last=micro == self.spec.optimizer.accumulation_steps - 1):
                    loss = self._forward(piece, share)
                    losses.append((loss.detach(), share))
                    self._backward(loss, share)
            rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
            self._update()
            self._advance()
        except torch.OutOfMemoryError as error:
            hint = "a smaller batch_size or sequence_length, or more accumulation_steps"
            raise TrainingFailedError(
                f"out of memory: {error}".splitlines()[0], code="out-of-memory", part=self.part, step=step, hint=hint
            ) from error
        self.clock.mark("optimizer")
        outcome = Outcome(losses, rates)
        self.observer.done(outcome)
        return outcome

    def check(self, step: int, loss: float) -> None:
        """`TrainingFailedError` for a loss that is no number."""
        if not math.isfinite(loss):
            raise TrainingFailedError(f"the loss is {loss}", code="non-finite", part=self.part, step=step)
