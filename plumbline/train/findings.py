"""What a run has found so far, for its record: all of it, or what is left of it where the training failed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from numpy.typing import NDArray

from plumbline.schema.evidence import DataEvidence, Evidence
from plumbline.train.context import Context
from plumbline.train.learn import LearnRun
from plumbline.train.probe import ProbeRun
from plumbline.train.replay import Bundle
from plumbline.train.speed import SpeedRun

__all__ = ["Findings"]

_Found = TypeVar("_Found")


def _left(read: Callable[[], _Found]) -> _Found | None:
    """What `read` finds, or nothing where it fails.

    A device that died answers every later question with its error, a RuntimeError of torch's: what lies on it is lost,
    what other parts have brought to the host is not. The error that ended the training is the one to tell of.
    """
    try:
        return read()
    except RuntimeError:
        return None


@dataclass
class Findings:
    """What the record will hold; filled as the run goes."""

    started_at: datetime
    context: Context | None = None
    bundle: Bundle | None = None
    data: DataEvidence | None = None
    mantissa_bits: dict[str, int] = field(default_factory=dict)
    probe: ProbeRun | None = None
    speed: SpeedRun | None = None
    learn: LearnRun | None = None
    timings: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add what is done meanwhile to a timing."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start

    def evidence(self) -> Evidence:
        """Every part's evidence; an error where one cannot be had."""
        return Evidence(
            data=self.data,
            model=self.probe.model_evidence if self.probe else None,
            probe=self.probe.evidence() if self.probe else None,
            speed=self.speed.evidence() if self.speed else None,
            learn=self.learn.evidence() if self.learn else None,
        )

    def remains(self) -> Evidence:
        """The evidence of a training that failed: of each part by itself, what can still be had."""
        return Evidence(
            data=self.data,
            model=self.probe.model_evidence if self.probe else None,
            probe=_left(self.probe.evidence) if self.probe else None,
            speed=_left(self.speed.evidence) if self.speed else None,
            learn=(_left(self.learn.evidence) or self.learn.curve()) if self.learn else None,
        )

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """The arrays that stand beside the record, by part; they all lie on the host."""
        parts = self.probe.arrays() if self.probe else {}
        if self.learn and "evaluation" not in parts:
            parts["evaluation"] = self.learn.arrays()
        return parts
