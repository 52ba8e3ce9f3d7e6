"""Outputs and gradients of one step, and their distances from another's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plumbline.schema import limits
from plumbline.schema.stage import Stage
from plumbline.train.batches import Batch
from plumbline.train.digests import finite, read_losses
from plumbline.train.engine import Engine
from plumbline.train.watch.recorder import Book, Tensors


class ModuleValues(Book[torch.Tensor]):
    """Book of a step's module outputs, in execution order, and gradients."""

    def __init__(self, engine: Engine, beside: Tensors | None = None) -> None:
        """Create the recorder; with `beside`, store only distances from these outputs."""
        super().__init__()
        self._engine, self._beside = engine, beside
        self.gaps: list[tuple[str, float | None]] = []
        self._found: dict[str, list[torch.Tensor]] = {}
        self._mask = torch.ones(0)

    def see(self, name: str, module: nn.Module, inputs: Any, value: torch.Tensor) -> None:  # noqa: ARG002
        """Store the output of a module inside of the model."""
        if module is not self._engine.bare:
            self._add(name, value)

    def _add(self, name: str, value: torch.Tensor) -> None:
        """Store an output on the host, without padding tokens."""
        kept = value.detach()
        if kept.dim() > self._mask.dim() and kept.shape[:2] == self._mask.shape:
            kept = kept[self._mask]
        if self._beside is None:
            self._found.setdefault(name, []).append(kept.to("cpu", copy=True))
        elif name == "logits" or (name in self._beside and self._beside[name].shape == kept.shape):
            self.gaps += apart(self._beside, {name: kept})

    def feeds(self, local: Batch) -> None:
        """Start a micro-batch's forward pass."""
        self._mask = local["attention_mask"].bool()
        super().feeds(local)

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """Store the logits."""
        super().forward_done(outputs, loss)
        self._add("logits", self._engine.unpacked(outputs.logits))

    def end(self) -> None:
        """Store the outputs, except those with varying shapes."""
        found, self._found = self._found, {}
        self.kept["forward"] = {
            name: torch.cat(pieces)
            for name, pieces in found.items()
            if pieces[0].dim() and len({piece.shape[1:] for piece in pieces}) == 1
        }

    def keep(self, stage: Stage, tensors: Tensors) -> None:
        """Store copies of gradients, and nothing for other stages."""
        if stage == "gradient":
            self.kept[stage] = {name: value.detach().clone() for name, value in tensors.items()}


def differ(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether two tensors differ in shape or any bit."""
    return ours.shape != theirs.shape or not bool(torch.equal(ours, theirs))


def apart(ours: Tensors, theirs: Tensors, least: float = 0.0) -> list[tuple[str, float | None]]:
    """Return the relative distance of each tensor in `theirs` from `ours`.

    The distance is `None` if `ours` lacks the tensor. A tensor below the share `least` of the largest, such as a
    mathematical zero, is measured relative to the largest.
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
    """Return the relative distances of gradients, in backward order."""
    return apart(ours, theirs, limits.SMALL_GRADIENT)[::-1]
