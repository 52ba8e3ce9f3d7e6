"""Progress of staging, and whether downloads keep up with training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Pace:
    """Accumulated time that training spent waiting for data and working.

    Staging hurries from the start, and after each wait, until `enough` files are staged in advance. It does not hurry
    while training has waited longer than it has worked: then the link is the limit, and one connection per file moves
    the most.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._hurried = True
        self._worked = 0.0
        self._waited = 0.0
        self._asked: float | None = None
        self._given: float | None = None

    def asked(self, now: float, *, there: bool) -> None:
        """Record that training requested its next file."""
        self._hurried = self._hurried or not there
        if self._given is not None:
            self._worked += now - self._given
        self._asked = now

    def given(self, now: float) -> None:
        """Record that training received its requested file."""
        self._waited += self._waits(now)
        self._asked, self._given = None, now

    def _waits(self, now: float) -> float:
        # The first wait does not count: no work came before it.
        return 0.0 if self._asked is None or self._given is None else now - self._asked

    def hurries(self, ahead: int, now: float) -> bool:
        """Return whether the next file should use all free connections."""
        self._hurried = self._hurried and ahead < self._enough
        return self._hurried and self._waited + self._waits(now) <= self._worked


@dataclass(frozen=True, slots=True)
class StagingProgress:
    """Snapshot of a stager's counters."""

    files: int
    files_done: int
    hits: int
    bytes_total: int
    bytes_done: int
    bytes_moved: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return the mean download rate in bytes per second."""
        return self.bytes_moved / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """Return the estimated remaining seconds, or `None` if unknown."""
        left = self.bytes_total - self.bytes_done
        if not left:
            return 0.0
        return left / self.rate if self.rate else None

    @property
    def event(self) -> dict[str, Any]:
        """Return the progress as a training event."""
        return {
            "event": "progress", "part": "staging", "step": self.files_done, "steps": self.files, "words": self.words,
        }  # fmt: skip

    @property
    def words(self) -> str:
        """Format the progress as text."""
        said = [f"{self.files_done} of {self.files} files", f"{self.rate / 2**20:.1f} MiB/s"]
        if self.remaining_seconds is not None:
            said.append(f"{self.remaining_seconds:.0f} s left")
        if self.hits:
            said.append(f"{self.hits} from the cache")
        return ", ".join(said)
