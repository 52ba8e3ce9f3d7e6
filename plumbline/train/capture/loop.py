"""A captured loop: what is trained, by which processes, and what could not be seen of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from plumbline.schema.evidence import ModelEvidence
from plumbline.train.failure import described
from plumbline.train.ranks import Ranks
from plumbline.train.watch.summaries import is_summarizing

Definition = Callable[[Any, Any], torch.Tensor]
"""Loss by a team's definition: (the model's outputs, the batch) → loss."""


@dataclass
class Loop:
    """Facts of one captured loop."""

    folder: Path
    model: nn.Module
    """The model, or all models in a `ModuleDict`."""
    optimizers: Sequence[torch.optim.Optimizer]
    asked: int
    """Steps of the training's name."""
    seed: int
    name: str
    platform: str
    scaler: Any
    rate: float | None
    identity: dict[str, str]
    steps: int
    """Steps of this record: an experiment's are fewer."""
    definition: Definition | None = None
    is_replicated: bool = False
    """Whether a model is in DistributedDataParallel."""
    is_compiled: bool = False
    is_sharded: bool = False
    is_rerun: bool = False
    """Whether values are kept or imposed, which no definition gives."""
    ranks: Ranks = field(default_factory=Ranks)
    """Processes that train equal parameters."""
    parts: Ranks = field(default_factory=Ranks)
    """Processes that hold parts of one model, of equal names and shapes, such as halves of its layers."""
    described: ModelEvidence | None = None
    start: Literal["own", "written", "given"] = "own"
    unknown: dict[str, None] = field(default_factory=dict)
    """What was not captured, and why, each once."""
    is_busy: bool = False
    """Whether a hook works."""
    spent: float = 0.0
    started_at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    began: float = field(default_factory=time.perf_counter)

    @property
    def is_aside(self) -> bool:
        """Return whether a hook or check makes calls of its own."""
        return self.is_busy or is_summarizing()

    @contextlib.contextmanager
    def aside(self, what: str) -> Iterator[None]:
        """Keep what a hook does out of the training: an error in it makes the evidence unknown, and ends nothing."""
        was_busy, self.is_busy, began = self.is_busy, True, time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a recorder ends no training, whatever its evidence meets
            self.unknown.setdefault(f"{what}: {described(error, 300)}"[:300])
        finally:
            self.is_busy = was_busy
            self.spent += 0.0 if was_busy else time.perf_counter() - began
