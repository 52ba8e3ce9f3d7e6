"""Values of one step: its outputs and gradients, and their distances from those of another step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plumbline.schema import limits
from plumbline.train.batches import Batch
from plumbline.train.calls import ModuleCalls
from plumbline.train.digests import finite
from plumbline.train.engine import Engine, read_losses
from plumbline.train.recorder import Stage, Tensors


class ModuleValues:
    """Outputs of each module's calls over the micro-batches of a step, in the order of execution, and the logits."""

    def __init__(self, engine: Engine, beside: Tensors | None = None) -> None:
        """`beside`: outputs from which only the distances of these are kept, in `gaps`."""
        self._engine, self._beside = engine, beside
        self.gaps: list[tuple[str, float | None]] = []
        self.calls = ModuleCalls(self._see)
        self._found: dict[str, list[torch.Tensor]] = {}
        self._mask = torch.ones(0)

    def _see(self, name: str, module: nn.Module, _inputs: Any, value: torch.Tensor) -> None:
        if module is not self._engine.bare:
            self._keep(name, value)

    def _keep(self, name: str, value: torch.Tensor) -> None:
        """Keep an output on the host, of tokens only those that are no padding: what padding becomes is free."""
        kept = value.detach()
        if kept.dim() > self._mask.dim() and kept.shape[:2] == self._mask.shape:
            kept = kept[self._mask]
        if self._beside is None:
            self._found.setdefault(name, []).append(kept.to("cpu", copy=True))
        elif name == "logits" or (name in self._beside and self._beside[name].shape == kept.shape):
            self.gaps += apart(self._beside, {name: kept})

    def feeds(self, local: Batch) -> None:
        """Start the forward pass of a micro-batch."""
        self._mask = local["attention_mask"].bool()
        self.calls.feeds()

    def forward_done(self, outputs: Any) -> None:
        """Keep the logits."""
        self.calls.forward_done()
        self._keep("logits", self._engine.unpacked(outputs.logits))

    def end(self) -> dict[str, torch.Tensor]:
        """Return the outputs; pieces of different shapes are left out."""
        found, self._found = self._found, {}
        return {
            name: torch.cat(pieces)
            for name, pieces in found.items()
            if pieces[0].dim() and len({piece.shape[1:] for piece in pieces}) == 1
        }


def gradients_alone(stage: Stage, tensors: Tensors) -> Tensors:
    """Return copies of a step's gradients, and of no other stage."""
    return {name: value.detach().clone() for name, value in tensors.items()} if stage == "gradient" else {}


def differ(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether two tensors differ in shape or in a bit."""
    return ours.shape != theirs.shape or not bool(torch.equal(ours, theirs))


def apart(ours: Tensors, theirs: Tensors, least: float = 0.0) -> list[tuple[str, float | None]]:
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


def backwards(ours: Tensors, theirs: Tensors) -> list[tuple[str, float | None]]:
    """Return the distances of gradients, from the loss backwards."""
    return apart(ours, theirs, limits.SMALL_GRADIENT)[::-1]
