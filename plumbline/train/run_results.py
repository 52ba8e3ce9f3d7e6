"""Results of a run so far, for its record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from numpy.typing import NDArray

from plumbline.schema.evidence import DataEvidence, Evidence, SelfcheckEvidence
from plumbline.train.context import Context
from plumbline.train.learn import LearnRun
from plumbline.train.probe import ProbeRun
from plumbline.train.replay import Bundle
from plumbline.train.speed import SpeedRun

_Found = TypeVar("_Found")


def _left(read: Callable[[], _Found]) -> _Found | None:
    """Return what `read` returns, or `None` if it raises a `RuntimeError`.

    A dead device raises torch's RuntimeError for every later access: its contents are lost, data on the host is not.
    The first error is the one to report.
    """
    try:
        return read()
    except RuntimeError:
        return None


@dataclass
class RunResults:
    """Contents of the record, filled during the run."""

    started_at: datetime
    context: Context | None = None
    bundle: Bundle | None = None
    selfcheck: SelfcheckEvidence | None = None
    data: DataEvidence | None = None
    probe: ProbeRun | None = None
    speed: SpeedRun | None = None
    learn: LearnRun | None = None
    timings: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a timing."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start

    def evidence(self) -> Evidence:
        """Return every part's evidence; raise if a part cannot be read."""
        return Evidence(
            selfcheck=self.selfcheck,
            data=self.data,
            model=self.probe.model_evidence if self.probe else None,
            probe=self.probe.evidence() if self.probe else None,
            speed=self.speed.evidence() if self.speed else None,
            learn=self.learn.evidence() if self.learn else None,
            trace=self.learn.trace() if self.learn else None,
        )

    def remains(self) -> Evidence:
        """Return all readable evidence of a failed training."""
        return Evidence(
            selfcheck=self.selfcheck,
            data=self.data,
            model=self.probe.model_evidence if self.probe else None,
            probe=_left(self.probe.evidence) if self.probe else None,
            speed=_left(self.speed.evidence) if self.speed else None,
            learn=(_left(self.learn.evidence) or self.learn.curve()) if self.learn else None,
        )

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the arrays of the record's parts, on the host."""
        parts = self.probe.arrays() if self.probe else {}
        if self.learn and "evaluation" not in parts:
            parts["evaluation"] = self.learn.arrays()
        if self.learn and (answers := self.learn.answers()):
            parts["answers"] = answers
        return parts
