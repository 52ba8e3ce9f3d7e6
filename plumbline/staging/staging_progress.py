"""Progress of staging."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of a stager at one moment."""

    files: int
    files_done: int
    hits: int
    bytes_total: int
    bytes_done: int
    bytes_moved: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return the mean bytes per second from the network."""
        return self.bytes_moved / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """Return the remaining seconds at this rate; `None` if unknown."""
        left = self.bytes_total - self.bytes_done
        if not left:
            return 0.0
        return left / self.rate if self.rate else None

    @property
    def words(self) -> str:
        """Return the progress as text."""
        said = [f"{self.files_done} of {self.files} files", f"{self.rate / 2**20:.1f} MiB/s"]
        if self.remaining_seconds is not None:
            said.append(f"{self.remaining_seconds:.0f} s left")
        if self.hits:
            said.append(f"{self.hits} from the cache")
        return ", ".join(said)
