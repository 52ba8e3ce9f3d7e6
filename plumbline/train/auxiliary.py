"""Auxiliary legs of the probe: optional reruns that explain its evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from plumbline.train.context import Context
from plumbline.train.failure import OUT_OF_MEMORY, TrainingFailedError

__all__ = ["auxiliary"]


@contextlib.contextmanager
def auxiliary(name: str, context: Context, lost: dict[str, str]) -> Iterator[None]:
    """Run one leg; without enough memory, keep the reason in `lost[name]` instead.

    With several processes the error is raised: the other processes wait for this one in a collective operation.
    """
    place = context.place
    try:
        yield
    except (TrainingFailedError, torch.OutOfMemoryError, MemoryError) as error:
        if context.ranks.world > 1 or (isinstance(error, TrainingFailedError) and error.code != OUT_OF_MEMORY):
            raise
        lost[name] = str(error)[:500] or OUT_OF_MEMORY
        context.place = place
    if name in lost:  # Not earlier: the error's frames held the leg's tensors until now.
        context.release()
