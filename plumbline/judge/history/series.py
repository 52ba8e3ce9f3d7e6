"""Series file: all nights of a suite on one platform.

It is stored by column, and only ever extended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Literal

from pydantic import AwareDatetime, Field, model_validator
from typing_extensions import Self

from plumbline.judge.history.metrics import read_metrics
from plumbline.schema.base import Model, Name
from plumbline.schema.digest import digest_json
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.record import RunRecord, night_time
from plumbline.schema.verdict import CauseCode, Outcome


class CallEntry(Model):
    """Notable decision on one metric of one night.

    Quiet decisions have no entry.
    """

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


class JudgedRound(Model):
    """Verdict of the platform in one round.

    A round without a record of the platform has one, too.
    """

    time: float
    """When the round ended, in seconds since 1970."""
    verdict: Outcome
    causes: tuple[str, ...] = ()
    has_baseline: bool = True


class NightRow(Model):
    """One workload on one platform in one night."""

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
    """Content of `series/SUITE/PLATFORM.json`, stored by column.

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
        columns = [self.record, self.round, self.workload, self.spec, self.lock, self.hardware, self.software]
        if any(len(column) != len(self.time) for column in (*columns, *self.metrics.values())):
            raise ValueError("columns of different lengths")
        places = {*self.workload, *self.spec, *self.lock, *self.hardware, *self.software}
        if places and not 0 <= min(places) <= max(places) < len(self.words):
            raise ValueError("a column points past the end of words")
        return self

    def __len__(self) -> int:
        return len(self.time)

    def places(self, workload: str) -> list[int]:
        """Return the rows of one workload, the oldest first."""
        wanted = {place for place, word in enumerate(self.words) if word == workload}
        return [place for place, name in enumerate(self.workload) if name in wanted]

    def row(self, place: int) -> NightRow:
        """Return the night at this index."""
        word = self.words.__getitem__
        return NightRow(
            record=self.record[place],
            round=self.round[place],
            time=datetime.fromtimestamp(self.time[place], timezone.utc),
            workload=word(self.workload[place]),
            spec=word(self.spec[place]),
            lock=word(self.lock[place]),
            hardware=word(self.hardware[place]),
            software=word(self.software[place]),
            metrics={name: column[place] for name, column in self.metrics.items()},
        )

    @property
    def workloads(self) -> tuple[str, ...]:
        """Return the workloads, in the order of their first nights."""
        return tuple(dict.fromkeys(self.words[place] for place in self.workload))


def software_key(fingerprint: Fingerprint) -> str:
    """Return a digest of a fingerprint's software.

    Equal keys rule the software out as a cause.
    """
    fields = ("os", "python", "plumbline", "driver", "cuda", "cudnn", "nccl", "packages", "numerics", "container_image")
    return digest_json({name: getattr(fingerprint, name) for name in fields})[:16]


def row_of(record: RunRecord, now: datetime | None = None) -> NightRow | None:
    """Return the night of a record.

    `None` for an experiment or a failed training: neither enters a series.
    """
    whole = all(getattr(record.evidence, part) is not None for part in record.spec.parts)
    if record.experiment is not None or record.exit.status != "completed" or not whole:
        return None
    return NightRow(
        record=record.record_id,
        round=record.round_id,
        time=night_time(record.round_id, record.started_at, now),
        workload=record.spec.workload,
        spec=record.spec_sha256[:16],
        lock=record.fingerprint.lock_sha256[:16],
        hardware=record.fingerprint.hardware_class,
        software=software_key(record.fingerprint),
        metrics=read_metrics(record),
    )


def extended(
    series: SeriesFile,
    rows: Iterable[NightRow],
    calls: Sequence[CallEntry] = (),
    judged: Mapping[str, JudgedRound] = {},
) -> SeriesFile:
    """Return the series with the rows that are new.

    Rows stay ordered by time; a known record changes nothing.
    """
    known = set(series.record)
    new = [row for row in {row.record: row for row in rows}.values() if row.record not in known]
    held = {(call.record, call.metric) for call in series.calls}
    later = tuple(call for call in calls if (call.record, call.metric) not in held)
    # A round that a person retried counts by its last verdict; the same verdict again keeps the first one's time.
    same = {
        name: old
        for name, old in series.judged.items()
        if name in judged and judged[name].replace(time=old.time) == old
    }
    merged = sorted({**series.judged, **judged, **same}.items(), key=lambda item: item[1].time)
    verdicts = dict(merged[-_MOST_JUDGED:])
    if not new:
        return series if not later and verdicts == series.judged else series.model_copy(
            update={"calls": (*series.calls, *later), "judged": verdicts}
        )  # fmt: skip
    words = {word: place for place, word in enumerate(series.words)}
    names = dict.fromkeys([*series.metrics, *(name for row in new for name in row.metrics)])
    times = [*series.time, *(row.time.timestamp() for row in new)]
    records = [*series.record, *(row.record for row in new)]
    order = sorted(range(len(times)), key=lambda place: (times[place], records[place]))
    # Almost always: tonight is the newest night.
    is_sorted = order == list(range(len(order)))

    def sort(values: Sequence[object]) -> tuple[object, ...]:
        return tuple(values) if is_sorted else tuple(map(values.__getitem__, order))

    columns = {
        name: sort([*getattr(series, name), *(words.setdefault(getattr(row, name), len(words)) for row in new)])
        for name in ("workload", "spec", "lock", "hardware", "software")
    }
    empty = (None,) * len(series)
    metrics = {
        name: sort([*series.metrics.get(name, empty), *(_shorter(row.metrics.get(name)) for row in new)])
        for name in names
    }
    return SeriesFile.model_validate(
        {
            "suite": series.suite,
            "platform": series.platform,
            "words": tuple(words),
            "time": sort(times),
            "record": sort(records),
            "metrics": metrics,
            "judged": verdicts,
            **columns,
            "round": sort([*series.round, *(row.round for row in new)]),
            "calls": (*series.calls, *later),
        }
    )


_MOST_JUDGED = 400


def _shorter(value: float | None) -> float | None:
    """Round to nine digits.

    Measurements are noisy in the third digit.
    """
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")
