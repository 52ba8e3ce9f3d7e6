"""Values of one step: its loss, logits, gradients and outputs, and their distances from those of another step."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from plumbline.schema import limits
from plumbline.train.batches import Batch
from plumbline.train.calls import ModuleCalls
from plumbline.train.digests import finite
from plumbline.train.engine import Engine, Observer, StepOutcome, read_losses
from plumbline.train.taps import named_gradients

Values = dict[str, torch.Tensor]


@dataclass
class StepValues(Observer):
    """Observer that keeps loss, logits, gradients and, if asked, each module's outputs over the micro-batches."""

    engine: Engine
    updates: bool = True
    beside: Values | None = None
    """Outputs, from which only the distances of these are kept."""
    gradients: Values = field(default_factory=dict)
    gaps: list[tuple[str, float | None]] = field(default_factory=list)
    loss_value: float = 0.0
    _outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _mask: torch.Tensor = field(default_factory=lambda: torch.ones(0))

    def __post_init__(self) -> None:
        self._calls = ModuleCalls(self._see)

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        """Watch the forward pass that begins."""
        self._mask = local["attention_mask"].bool()
        self._calls.feeds()

    def watching(self) -> ExitStack:
        """Keep each module's outputs, too."""
        return self._calls.hook(self.engine.bare)

    def _see(self, name: str, module: nn.Module, _inputs: Any, value: torch.Tensor) -> None:
        if module is not self.engine.bare:
            self._keep(name, value)

    def _keep(self, name: str, value: torch.Tensor) -> None:
        """Keep an output on the host, of tokens only those that are no padding: what padding becomes is free."""
        kept = value.detach()
        if kept.dim() > self._mask.dim() and kept.shape[:2] == self._mask.shape:
            kept = kept[self._mask]
        if self.beside is None:
            self._outputs.setdefault(name, []).append(kept.to("cpu", copy=True))
        elif name == "logits" or (name in self.beside and self.beside[name].shape == kept.shape):
            self.gaps += apart(self.beside, {name: kept})

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:  # noqa: ARG002 - an observer's signature
        """Keep the logits."""
        self._calls.forward_done()
        self._keep("logits", self.engine.unpacked(outputs.logits))

    def backward_done(self) -> None:
        """Keep the gradients."""
        self.gradients = {name: value.detach().clone() for name, value in named_gradients(self.engine.bare).items()}

    def update(self) -> bool:
        """Return whether the weights stay as they are."""
        return not self.updates

    def done(self, outcome: StepOutcome) -> None:
        """Read the loss."""
        self.loss_value = outcome.loss(self.engine.ranks)

    def outputs(self) -> Values:
        """Return outputs in the order of execution; pieces of different shapes are left out."""
        return {
            name: torch.cat(pieces)
            for name, pieces in self._outputs.items()
            if pieces[0].dim() and len({piece.shape[1:] for piece in pieces}) == 1
        }


def differ(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether two tensors differ in shape or in a bit."""
    return ours.shape != theirs.shape or not bool(torch.equal(ours, theirs))


def apart(ours: Values, theirs: Values, least: float = 0.0) -> list[tuple[str, float | None]]:
    """Return the relative distance of each of `theirs`, `None` where `ours` lacks it.

    A tensor below the share `least` of the largest, such as a mathematical zero, is measured relative to the largest.
    """
    names = [name for name, value in theirs.items() if name in ours and ours[name].shape == value.shape]
    sizes = read_losses(torch.linalg.vector_norm(theirs[name].double()) for name in names)
    gaps = read_losses(
        torch.linalg.vector_norm(ours[name].to(theirs[name].device).double() - theirs[name].double()) for name in names
    )
    smallest = least * max(sizes, default=0.0)
    found = {
        name: finite(gap / max(size, smallest)) if max(size, smallest) else finite(gap)
        for name, gap, size in zip(names, gaps, sizes, strict=True)
    }
    return [(name, found.get(name)) for name in theirs]


def backwards(ours: Values, theirs: Values) -> list[tuple[str, float | None]]:
    """Return the distances of gradients, from the loss backwards."""
    return apart(ours, theirs, limits.SMALL_GRADIENT)[::-1]
