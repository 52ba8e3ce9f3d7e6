"""Recorder of a step's tensors, and the books that store them by stage and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from plumbline.schema.stage import Stage
from plumbline.train.batches import Batch
from plumbline.train.engine import Engine, Observer, StepOutcome
from plumbline.train.watch.calls import ModuleCalls

Kept = TypeVar("Kept")
KEPT: tuple[Stage, ...] = ("forward", "gradient", "clipped", "optimizer")
"""Stages whose tensors a book stores."""
Tensors = Mapping[str, torch.Tensor]


def named_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters' gradients, in model order."""
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


class Book(Generic[Kept]):
    """Store of a step's tensors; this base class stores none."""

    def __init__(self) -> None:
        self.calls = ModuleCalls(self.see)
        self.kept: dict[Stage, dict[str, Kept]] = {stage: {} for stage in KEPT}
        """Tensors of the last step as stored, once it is done."""

    def see(self, name: str, module: nn.Module, inputs: Any, value: torch.Tensor) -> None:
        """Store a module's output; the book that wants it hooks `calls`."""

    def starts(self, step: int, model: nn.Module) -> None:
        """Handle the start of a step."""

    def feeds(self, local: Batch) -> None:  # noqa: ARG002 - for other books
        """Handle the next micro-batch."""
        self.calls.feeds()

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:  # noqa: ARG002 - as above
        """Handle the end of a micro-batch's forward pass."""
        self.calls.forward_done()

    def end(self) -> None:
        """Handle the complete backward pass, which ends the modules' outputs."""

    def keep(self, stage: Stage, tensors: Tensors) -> None:
        """Store the tensors of a later stage."""

    def done(self, outcome: StepOutcome, loss: float) -> None:
        """Handle the end of the step, with its global loss."""


class Recorder(Observer, Generic[Kept]):
    """Observer that records tensors and global loss of the last step."""

    def __init__(
        self, engine: Engine, book: Book[Kept], change: Callable[[Tensors], None] = lambda _: None, *,
        updates: bool = True,
    ) -> None:  # fmt: skip
        """Create the recorder; `change` edits gradients, `updates=False` skips the update."""
        self._engine, self._book, self._change, self._updates = engine, book, change, updates
        self.loss_value = 0.0

    @property
    def kept(self) -> Mapping[Stage, Mapping[str, Kept]]:
        """Return the tensors of the last step as stored."""
        return self._book.kept

    def starts(self, step: int) -> None:
        """Start a step."""
        self._book.starts(step, self._engine.bare)

    def feeds(self, local: Batch, first_row: int) -> None:  # noqa: ARG002 - an observer's signature
        """Start a micro-batch."""
        self._book.feeds(local)

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """End a micro-batch's forward pass."""
        self._book.forward_done(outputs, loss)

    def backward_done(self) -> None:
        """Record outputs and gradients, then apply `change` to the gradients."""
        gradients = named_gradients(self._engine.bare)
        self._book.end()
        self._book.keep("gradient", gradients)
        self._change(gradients)

    def clipped(self) -> None:
        """Record the clipped gradients."""
        self._book.keep("clipped", named_gradients(self._engine.bare))

    def update(self) -> bool:
        """Return whether the weight update is skipped."""
        return not self._updates

    def done(self, outcome: StepOutcome) -> None:
        """Record weights and loss."""
        self._book.keep("optimizer", dict(self._engine.bare.named_parameters()))
        self.loss_value = outcome.loss(self._engine.ranks)
        self._book.done(outcome, self.loss_value)
