"""Rows of a series file: convert records to nights, and append."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from plumbline.judge.history.metrics import read_metrics
from plumbline.schema.digest import digest_json
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.record import RunRecord, night_time
from plumbline.schema.series import WORD_COLUMNS, CallEntry, JudgedRound, NightRow, SeriesFile

_MOST_JUDGED = 400


def software_key(fingerprint: Fingerprint) -> str:
    """Return a digest of the software; equal digests exclude a software cause."""
    fields = ("os", "python", "plumbline", "driver", "cuda", "cudnn", "nccl", "packages", "numerics", "container_image")
    return digest_json({name: getattr(fingerprint, name) for name in fields})[:16]


def row_of(record: RunRecord, now: datetime | None = None) -> NightRow | None:
    """Convert a record to a series row; `None` for experiments and incomplete trainings."""
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
    """Return the series with the new rows added, sorted by time."""
    known, held = set(series.record), {(call.record, call.metric) for call in series.calls}
    new = [row for row in {row.record: row for row in rows}.values() if row.record not in known]
    every = (*series.calls, *(call for call in calls if (call.record, call.metric) not in held))
    # A round that a person retried counts by its last verdict; the same verdict again keeps the first one's time.
    later = {name: result for name, result in judged.items() if not _is_same(series.judged.get(name), result)}
    verdicts = dict(sorted({**series.judged, **later}.items(), key=lambda item: item[1].time)[-_MOST_JUDGED:])
    if not new:
        is_same = len(every) == len(series.calls) and verdicts == series.judged
        return series if is_same else series.model_copy(update={"calls": every, "judged": verdicts})
    words = {word: place for place, word in enumerate(series.words)}
    added = {"time": [row.time.timestamp() for row in new]}
    added |= {name: [getattr(row, name) for row in new] for name in ("record", "round")}
    added |= {name: [words.setdefault(getattr(row, name), len(words)) for row in new] for name in WORD_COLUMNS}
    columns = {name: [*getattr(series, name), *values] for name, values in added.items()}
    order = sorted(range(len(columns["time"])), key=lambda place: (columns["time"][place], columns["record"][place]))
    metrics = {
        name: [*series.metrics.get(name, [None] * len(series)), *(_shorter(row.metrics.get(name)) for row in new)]
        for name in dict.fromkeys([*series.metrics, *(name for row in new for name in row.metrics)])
    }

    def ordered(table: Mapping[str, Sequence[object]]) -> dict[str, tuple[object, ...]]:
        return {name: tuple(column[place] for place in order) for name, column in table.items()}

    whole = {"suite": series.suite, "platform": series.platform, "words": tuple(words), "judged": verdicts}
    return SeriesFile.model_validate({**whole, "calls": every, "metrics": ordered(metrics), **ordered(columns)})


def _is_same(old: JudgedRound | None, new: JudgedRound) -> bool:
    return old is not None and new.replace(time=old.time) == old


def _shorter(value: float | None) -> float | None:
    """Round to nine significant digits, ample for noisy measurements."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")
