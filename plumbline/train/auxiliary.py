"""Auxiliary legs of the probe: optional reruns that explain its evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from plumbline.train.context import Context
from plumbline.train.failure import OUT_OF_MEMORY, TrainingFailedError
from plumbline.train.machine_errors import is_out_of_memory


@contextlib.contextmanager
def auxiliary(name: str, context: Context, lost: dict[str, str]) -> Iterator[None]:
    """Run one leg; if a process has not enough memory, keep the reason in every process's `lost[name]`.

    The leg may contain no collective operation: a process that has lost its leg takes part in none of them.
    """
    place, reason = context.place, ""
    try:
        yield
    except (RuntimeError, MemoryError, TrainingFailedError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error)[:500] or OUT_OF_MEMORY
        context.place = place
    reasons = [text for text in context.ranks.gather(reason) if text]
    if reasons:
        lost[name] = reasons[0]
        context.release()  # Not earlier: the error's frames held the leg's tensors until now.
