"""Training step shared by all parts: forward, backward, clip, update."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from plumbline.schema.errors import memory_hint
from plumbline.schema.spec import Precision, RunSpec
from plumbline.train.batches import Batch, Packing, pack_rows
from plumbline.train.compat.torch import shard
from plumbline.train.compat.transformers import made_mask, mask_of_texts
from plumbline.train.digests import read_losses
from plumbline.train.failure import OUT_OF_MEMORY, TrainingFailedError, is_out_of_memory
from plumbline.train.models.dropout import DropoutClock
from plumbline.train.models.families import in_double, input_fields
from plumbline.train.numerics import autocast
from plumbline.train.optimizers import group_rates, make_optimizer, make_scaler, make_schedule
from plumbline.train.ranks import Ranks
from plumbline.train.tasks import IGNORED, training_task

_MULTIPLE = 8
"""Multiple of padded lengths, as tensor cores prefer it."""


@dataclass
class StepOutcome:
    """Result of a step, with loss tensors that may still be computing."""

    losses: list[tuple[torch.Tensor, float]]
    learning_rates: tuple[float, ...]
    gradient_norm: torch.Tensor | None = None
    """Norm of the gradients before clipping."""

    def loss(self, ranks: Ranks) -> float:
        """Return the fp64 loss over the global batch; synchronises the device."""
        read = read_losses(loss.detach() for loss, _ in self.losses)
        return ranks.total(sum(value * share for value, (_, share) in zip(read, self.losses, strict=True)))


class Observer:
    """Hooks into a training step, forwarded to members.

    A subclass that overrides a hook decides whether the members get it.
    """

    _members: tuple[Observer, ...] = ()

    def __init__(self, *members: Observer) -> None:
        self._members = members

    def starts(self, step: int) -> None:
        """Handle the start of a step."""
        for member in self._members:
            member.starts(step)

    def batch(self, batch: Batch) -> Batch:
        """Return the global batch to train on, as replaced by the members."""
        for member in reversed(self._members):
            batch = member.batch(batch)
        return batch

    def feeds(self, local: Batch, first_row: int) -> None:
        """Handle the next micro-batch, rows from `first_row` on."""
        for member in self._members:
            member.feeds(local, first_row)

    def loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss for the backward pass, from the last member."""
        loss: torch.Tensor = self._members[-1].loss(outputs, labels) if self._members else outputs.loss
        return loss

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """Handle the end of a micro-batch's forward pass."""
        for member in self._members:
            member.forward_done(outputs, loss)

    def backward_done(self) -> None:
        """Handle the complete gradients, unscaled and not yet clipped."""
        for member in self._members:
            member.backward_done()

    def clipped(self) -> None:
        """Handle the clipped gradients, as the optimizer will see them."""
        for member in self._members:
            member.clipped()

    def update(self) -> bool:
        """Return whether the last member did the weight update itself."""
        return bool(self._members) and self._members[-1].update()

    def done(self, outcome: StepOutcome) -> None:
        """Handle the end of the step, after the update."""
        for member in self._members:
            member.done(outcome)


class Clock:
    """Interface of a step timer; this base class ignores all calls."""

    def mark(self, name: str) -> None:
        """Add the time since the last mark to phase `name`."""


def _nothing(logits: torch.Tensor) -> torch.Tensor:
    """Return a zero loss connected to the graph, without fp16 overflow."""
    return logits.sum(dtype=torch.promote_types(logits.dtype, torch.float32)) * 0.0


def _to_longest(batch: Batch) -> Batch:
    """Trim padding columns from a batch, to a multiple of 8."""
    used = batch["attention_mask"].any(dim=0).nonzero()
    width = -(-(int(used.max()) + 1) // _MULTIPLE) * _MULTIPLE if len(used) else _MULTIPLE
    return {name: values[:, :width] if values.dim() > 1 else values for name, values in batch.items()}


class Engine:
    """Model with optimizer, schedule and precision, for steps on global batches."""

    def __init__(
        self, spec: RunSpec, model: nn.Module, ranks: Ranks, *, steps: int, precision: Precision, part: str,
        fused: bool = False, clock: Clock | None = None,
        optimizer: str = "adamw", distributed: Mapping[str, Any] | None = None, is_sharded: bool = False,
        masks: DropoutClock | None = None,
    ) -> None:  # fmt: skip
        """Build optimizer and schedule; `masks` positions the portable dropout."""
        self.spec, self.ranks, self.precision, self.part, self.steps = spec, ranks, precision, part, steps
        self.task = training_task(spec.task)
        self.bare = in_double(model) if precision == "fp64" else model
        self.is_sharded = is_sharded and ranks.world > 1
        if self.is_sharded:
            shard(self.bare, ranks.device, ranks.world)
        self.optimizer = make_optimizer(self.bare, spec.optimizer, fused=fused, kind=optimizer)
        self.schedule = make_schedule(self.optimizer, spec, steps)
        self.scaler = make_scaler(precision, ranks.device)
        self.model: Any = self.bare
        if ranks.world > 1 and not self.is_sharded:
            self.model = DistributedDataParallel(
                self.bare, device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
                **(distributed or {}),
            )  # fmt: skip
        self.observer, self._masks = Observer(), masks
        self.clock = Clock() if clock is None else clock
        self.makes_masks = self.keeps_graphs = self.is_compiled = False
        """Whether masks are made here, CUDA graphs own the outputs, and a compiler made the kernels."""
        self.padding: Literal["fixed", "longest", "packed"] = "fixed"
        self._has_padding = True
        self._packing: Packing | None = None
        self._fields = input_fields(self.bare)
        self._gradient_norm: torch.Tensor | None = None

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield this process's micro-batches, with their shares of the global loss."""
        if self.padding == "longest":
            batch = _to_longest(batch)
        local = {name: values[self.ranks.slice(len(values))] for name, values in batch.items()}
        rows, parts = len(local["labels"]), self.spec.optimizer.accumulation_steps
        if rows % parts:
            raise TrainingFailedError(
                f"{parts} micro-batches do not divide the {rows} rows of one process", code="setting", part=self.part
            )
        whole, size = self.task.num_terms(batch["labels"]), self.task.num_terms
        shares = [size(piece) / whole if whole else 0.0 for piece in local["labels"].split(rows // parts)]
        masks = local["attention_mask"].split(rows // parts)
        padded = [not bool(piece.all()) for piece in masks]
        packings = [pack_rows(piece).to(self.ranks.device) for piece in masks] if self.padding == "packed" else []
        moved = {name: values.to(self.ranks.device, non_blocking=True) for name, values in local.items()}
        self.clock.mark("host_to_device")
        pieces = {name: values.split(rows // parts) for name, values in moved.items()}
        for place, share in enumerate(shares):
            self._has_padding, self._packing = padded[place], packings[place] if packings else None
            yield {name: values[place] for name, values in pieces.items()}, share

    def _inputs(self, piece: Batch) -> dict[str, torch.Tensor | None]:
        """Return the model's inputs, packed or with a ready-made attention mask."""
        if self._packing is not None:
            return self._packed(piece, self._packing)
        inputs: dict[str, torch.Tensor | None] = {name: piece[name] for name in self._fields}
        if self.makes_masks:
            inputs["attention_mask"] = made_mask(self.bare, piece["attention_mask"]) if self._has_padding else None
        return inputs

    def _packed(self, piece: Batch, packing: Packing) -> dict[str, torch.Tensor | None]:
        fillings = {"input_ids": self.spec.model.pad_token_id, "labels": IGNORED}
        return {
            **{name: packing.pack(piece[name], fillings.get(name, 0)) for name in self._fields},
            "attention_mask": mask_of_texts(self.bare, packing.texts),
            "position_ids": packing.positions,
        }

    def unpacked(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return packed outputs in the batch's original row order."""
        return outputs if self._packing is None else self._packing.unpack(outputs)

    def _forward(self, piece: Batch, share: float) -> torch.Tensor:
        with autocast(self.precision, self.ranks.device):
            if self.keeps_graphs:
                torch.compiler.cudagraph_mark_step_begin()
            outputs = self.model(**self._inputs(piece))
            outputs.loss = self.task.loss(outputs, piece["labels"])
            loss = self.observer.loss(outputs, piece["labels"]) if share else _nothing(outputs.logits)
        self.observer.forward_done(outputs, loss)
        self.clock.mark("forward")
        return loss

    def _quiet(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return a context that skips gradient all-reduce except in the last micro-batch.

        The context must include the forward pass: there DDP decides whether the backward pass reduces.
        """
        if self.is_sharded:
            self.model.set_requires_gradient_sync(last)
            return contextlib.nullcontext()
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
        trainable = [value for value in self.bare.parameters() if value.requires_grad]
        self._gradient_norm = torch.nn.utils.clip_grad_norm_(trainable, self.spec.optimizer.max_grad_norm)
        self.observer.clipped()
        if self.observer.update():
            return
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def advance(self) -> None:
        """Advance the schedule: set the next step's learning rate.

        torch warns if no optimizer step came first, as when loss scaling skips a step or a checkpoint is resumed.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule.step()

    def step(self, step: int, batch: Batch) -> StepOutcome:
        """Train on one global batch."""
        if self._masks:
            self._masks.starts(step)
        self.observer.starts(step)
        batch = self.observer.batch(batch)
        self.optimizer.zero_grad(set_to_none=True)
        # What a hook does before a step is not a copy to the device.
        self.clock.mark("optimizer")
        losses: list[tuple[torch.Tensor, float]] = []
        first_row = self.ranks.slice(len(batch["labels"])).start
        try:
            for micro, (piece, share) in enumerate(self._micro_batches(batch)):
                if self._masks:
                    self._masks.feeds(first_row)
                self.observer.feeds(piece, first_row)
                first_row += len(piece["labels"])
                with self._quiet(last=micro == self.spec.optimizer.accumulation_steps - 1):
                    loss = self._forward(piece, share)
                    losses.append((loss.detach().clone() if self.keeps_graphs else loss.detach(), share))
                    self._backward(loss, share)
            rates = group_rates(self.optimizer)
            self._update()
            self.advance()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingFailedError(
                f"out of memory: {error}".splitlines()[0],
                code=OUT_OF_MEMORY,
                part=self.part,
                step=step,
                hint=memory_hint(self.part),
            ) from error
        self.clock.mark("optimizer")
        outcome = StepOutcome(losses, rates, self._gradient_norm)
        self.observer.done(outcome)
        return outcome

    def check(self, step: int, loss: float) -> None:
        """Raise `TrainingFailedError` if the loss is not finite."""
        if not math.isfinite(loss):
            raise TrainingFailedError(f"the loss is {loss}", code="non-finite", part=self.part, step=step)
