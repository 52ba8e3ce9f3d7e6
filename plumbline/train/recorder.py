"""Recorder of a step's tensors by stage and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch

from plumbline.train.batches import Batch
from plumbline.train.engine import Engine, Observer, StepOutcome
from plumbline.train.taps import named_gradients

Kept = TypeVar("Kept")
_Made_co = TypeVar("_Made_co", covariant=True)
Stage = Literal["forward", "gradient", "clipped", "weight"]
Tensors = Mapping[str, torch.Tensor]


class _Outputs(Protocol[_Made_co]):
    """Interface of a store for a step's module outputs."""

    def feeds(self, local: Batch) -> None: ...

    def forward_done(self, outputs: Any) -> None: ...

    def end(self) -> Mapping[str, _Made_co] | None: ...


class Recorder(Observer, Generic[Kept]):
    """Observer that records tensors and global loss of the last step."""

    def __init__(
        self, engine: Engine, outputs: _Outputs[Kept], keep: Callable[[Stage, Tensors], Mapping[str, Kept]],
        change: Callable[[Tensors], None] = lambda _: None, *, updates: bool = True,
    ) -> None:  # fmt: skip
        """Create the recorder; `change` edits gradients, `updates=False` skips the update."""
        self._engine, self._outputs, self._keep, self._change = engine, outputs, keep, change
        self._updates = updates
        self.kept: dict[Stage, Mapping[str, Kept]] = {}
        self.loss_value = 0.0

    def feeds(self, local: Batch, first_row: int) -> None:  # noqa: ARG002 - an observer's signature
        """Start a micro-batch."""
        self._outputs.feeds(local)

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:  # noqa: ARG002 - as above
        """End a micro-batch's forward pass."""
        self._outputs.forward_done(outputs)

    def backward_done(self) -> None:
        """Record outputs and gradients, then apply `change` to the gradients."""
        gradients = named_gradients(self._engine.bare)
        self.kept = {"forward": self._outputs.end() or {}, "gradient": self._keep("gradient", gradients)}
        self._change(gradients)

    def clipped(self) -> None:
        """Record the clipped gradients."""
        self.kept["clipped"] = self._keep("clipped", named_gradients(self._engine.bare))

    def update(self) -> bool:
        """Return whether the weight update is skipped."""
        return not self._updates

    def done(self, outcome: StepOutcome) -> None:
        """Record weights and loss."""
        self.kept["weight"] = self._keep("weight", dict(self._engine.bare.named_parameters()))
        self.loss_value = outcome.loss(self._engine.ranks)
