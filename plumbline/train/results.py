"""Results of a run so far, which its record contains."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from numpy.typing import NDArray

from plumbline.schema.evidence import DataEvidence, Evidence, SelfcheckEvidence
from plumbline.train.context import Context
from plumbline.train.learn import LearnRun
from plumbline.train.probe import ProbeRun
from plumbline.train.replay import Bundle
from plumbline.train.speed import SpeedRun


def _left(read: Callable[[], Any]) -> Any:
    """Return the result of `read`, or `None` if the device failed.

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
    _began: float = field(default_factory=time.monotonic)

    @property
    def finished_at(self) -> datetime:
        """Return the time now, also if the machine's clock was corrected since the start."""
        return self.started_at + timedelta(seconds=time.monotonic() - self._began)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the `with` block to a timing."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start

    def evidence(self, read: Callable[[Callable[[], Any]], Any] = lambda part: part()) -> Evidence:
        """Return the evidence of all training parts; `read` calls each part's own."""
        return Evidence(
            selfcheck=self.selfcheck,
            data=self.data,
            model=self.probe.model_evidence if self.probe else None,
            probe=read(self.probe.evidence) if self.probe else None,
            speed=read(self.speed.evidence) if self.speed else None,
            learn=read(self.learn.evidence) if self.learn else None,
        )

    def remains(self) -> Evidence:
        """Return all readable evidence of a failed training."""
        return self.evidence(_left)

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the record's arrays, on the host."""
        parts = self.probe.arrays() if self.probe else {}
        if self.learn and "evaluation" not in parts:
            parts["evaluation"] = self.learn.arrays()
        if self.learn and (answers := self.learn.answers()):
            parts["answers"] = answers
        return parts
