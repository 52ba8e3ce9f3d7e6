"""Series file: a suite's nights on one platform, column-wise, append-only."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Literal

from pydantic import AwareDatetime, Field, model_validator
from typing_extensions import Self

from plumbline.schema.base import Model, Name
from plumbline.schema.verdict import CauseCode, Outcome

WORD_COLUMNS = ("workload", "spec", "lock", "hardware", "software")
"""Columns that hold indexes of words."""


class CallEntry(Model):
    """Stored decision on one metric of one night, if noteworthy."""

    record: Name
    metric: str
    verdict: Outcome
    reason: str
    new: bool = False
    answered: bool = False
    """The loss is not the software's: it is equal, or an experiment has ruled it out."""
    since: float | None = None
    """Time of the first night of the loss, in seconds since 1970."""
    shape: str = ""
    centre: float | None = None
    size: float | None = None
    low: float | None = None
    high: float | None = None
    cause: CauseCode | None = None
    lead: float | None = 0.0
    """The software's lead over the baseline's after a new call or gain; `None`: unknown."""
    open_calls: int | None = None
    """Number of earlier calls that stay open; `None`: an earlier version did not say."""


class JudgedRound(Model):
    """A platform's verdict in one round, even without a record."""

    time: float
    """When the round ended, in seconds since 1970."""
    verdict: Outcome
    causes: tuple[str, ...] = ()
    has_baseline: bool = True


class NightRow(Model):
    """Row of a series: one workload on one platform in one night."""

    record: Name
    round: str
    time: AwareDatetime
    workload: Name
    spec: str
    lock: str
    hardware: str
    software: str
    metrics: dict[str, float | None]


class SeriesFile(Model):
    """Content of `series/SUITE/PLATFORM.json`, stored column-wise.

    Columns have equal length, and are ordered by time, then by record. Long strings stand once in `words`; a column
    holds their index. A column of a metric that came later is filled up with `None`. `calls` holds the decisions that
    were more than quiet.
    """

    schema_version: Literal[1] = 1
    suite: str
    platform: Name
    words: tuple[str, ...] = ()
    time: tuple[float, ...] = ()
    record: tuple[str, ...] = ()
    round: tuple[str, ...] = ()
    workload: tuple[int, ...] = ()
    spec: tuple[int, ...] = ()
    lock: tuple[int, ...] = ()
    hardware: tuple[int, ...] = ()
    software: tuple[int, ...] = ()
    metrics: dict[str, tuple[float | None, ...]] = {}
    calls: tuple[CallEntry, ...] = Field(default=())
    judged: dict[str, JudgedRound] = {}
    """By round: the platform's verdict, of the newest rounds, ordered by time."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        words = [getattr(self, name) for name in WORD_COLUMNS]
        columns = [self.record, self.round, *words, *self.metrics.values()]
        if any(len(column) != len(self.time) for column in columns):
            raise ValueError("columns of different lengths")
        places = {place for column in words for place in column}
        if places and not 0 <= min(places) <= max(places) < len(self.words):
            raise ValueError("a column points past the end of words")
        return self

    def __len__(self) -> int:
        return len(self.time)

    def places(self, workload: str) -> list[int]:
        """Return the row indices of one workload, oldest first."""
        wanted = {place for place, word in enumerate(self.words) if word == workload}
        return [place for place, name in enumerate(self.workload) if name in wanted]

    def row(self, place: int) -> NightRow:
        """Return the row at this index."""
        plain = {name: getattr(self, name)[place] for name in ("record", "round")}
        words = {name: self.words[getattr(self, name)[place]] for name in WORD_COLUMNS}
        when = datetime.fromtimestamp(self.time[place], timezone.utc)
        metrics = {name: column[place] for name, column in self.metrics.items()}
        return NightRow(time=when, metrics=metrics, **plain, **words)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Return the workloads in order of first appearance."""
        return tuple(dict.fromkeys(self.words[place] for place in self.workload))
