"""Live progress of a round: table on a terminal, otherwise plain lines."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from plumbline.cli.options import is_quiet
from plumbline.schema.escape import clean, one_line

_WORTH_SECONDS = 0.05
PHASES = {
    "waiting": "waits for a worker",
    "starting": "starts",
    "running": "trains",
    "cancelling": "is being cancelled",
    "failed": "failed",
    "done": "done",
}
_RANKS = {name: rank for rank, name in enumerate(PHASES)}
"""Order of the phases of one training run: a late answer of the server takes none back."""


@dataclass
class _PlatformRow:
    phase: str = ""
    text: str = ""
    percent: float = 0.0

    @property
    def headline(self) -> str:
        """Return the phase, and which part of the training runs now."""
        first = self.text.split(" ")[0]
        part = f" {first}" if self.phase == "running" and first not in ("", "starting") else ""
        return f"{PHASES.get(self.phase, self.phase)}{part}"


@dataclass
class _Shown:
    """State of one training run that was last printed."""

    rank: int = -1
    headlines: set[str] = field(default_factory=set)

    def is_new(self, row: _PlatformRow) -> bool:
        """Return whether the run reached a later phase or another part."""
        rank = _RANKS.get(row.phase, 0)
        moved = rank > self.rank or (rank == self.rank and bool(row.text) and row.headline not in self.headlines)
        if moved:
            self.rank = rank
            self.headlines.add(row.headline)
        return moved


@dataclass
class Display:
    """Progress display on stderr, which also measures each phase's duration."""

    title: str
    console: Console = field(default_factory=lambda: Console(file=sys.stderr, highlight=False, quiet=is_quiet()))
    timings: dict[str, float] = field(default_factory=dict)
    _rows: dict[str, _PlatformRow] = field(default_factory=dict)
    _shown: dict[str, _Shown] = field(default_factory=dict)
    _phase: str = ""
    _since: float = field(default_factory=time.monotonic)
    _begun: float = field(default_factory=time.monotonic)
    _live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        else:
            # The title is printed nowhere else, and is needed to resume a round.
            self.say(self.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.phase("")
        self.stop()

    def stop(self) -> None:
        """Remove the live display; later messages still print."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, message: str) -> None:
        """Print a message above the live display."""
        elapsed = time.monotonic() - self._begun
        self.console.print(Text(f"{elapsed:6.1f} s  {one_line(message)}"), soft_wrap=True)

    def phase(self, name: str) -> None:
        """Start a phase, ending the previous one."""
        now = time.monotonic()
        if self._phase:
            self.timings[self._phase] = self.timings.get(self._phase, 0.0) + now - self._since
        if name and name != self._phase:
            self.say(name)
        self._phase, self._since = name, now

    def spent(self) -> dict[str, float]:
        """Return the seconds spent in each phase, and `total`."""
        known = {name: seconds for name, seconds in self.timings.items() if seconds >= _WORTH_SECONDS}
        return {**known, "total": time.monotonic() - self._begun}

    def platform(
        self, name: str, phase: str, *, run: str = "", title: str = "", text: str = "", percent: float = 0.0
    ) -> None:
        """Show a training run's progress. `phase` is a key of `PHASES`.

        A line is printed when the run moves on. `title` names a run beside the platform's first one.
        """
        row = _PlatformRow(phase=phase, text=text, percent=percent)
        self._rows[name] = row
        if self._shown.setdefault(run or name, _Shown()).is_new(row) and not self._live:
            self.say(f"{name}: {row.headline}{f' ({title})' if title else ''}")

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, row in self._rows.items():
            busy = row.phase == "running"
            bar: RenderableType = ProgressBar(total=100, completed=row.percent, width=24) if busy else Text("")
            table.add_row(
                Text(name, style="bold"), PHASES.get(row.phase, row.phase), bar, Text(clean(row.text) if busy else "")
            )
        elapsed = time.monotonic() - self._begun
        spinner = Spinner("dots", Text(f"{self.title}: {self._phase or 'ending'}, {elapsed:.0f} s"))
        return Group(spinner, table)
