"""Series files in the central store, extended by compare-and-swap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from plumbline.central.central_store import CentralStore
from plumbline.central.outbox import record_key
from plumbline.errors import InvalidInputError, UnavailableError
from plumbline.history.series import CallEntry, JudgedRound, NightRow, SeriesFile, extended, row_of
from plumbline.schema.base import read_model
from plumbline.schema.record import MAX_RECORD_BYTES, parse_record
from plumbline.stores.protocol import PreconditionFailedError, read_bytes

_ATTEMPTS = 8
_AT_ONCE = 8
_MAX_BYTES = 64 << 20


def series_key(suite: str, platform: str) -> str:
    """Return a series' key in the central store."""
    return f"series/{suite}/{platform}.json"


def read_series(central: CentralStore, suite: str, platform: str) -> SeriesFile:
    """Return the series, empty if absent; raise `InvalidInputError` if damaged."""
    return _read(central, suite, platform)[0]


def extend_series(
    central: CentralStore,
    suite: str,
    platform: str,
    rows: Sequence[NightRow],
    *,
    calls: Sequence[CallEntry] = (),
    judged: Mapping[str, JudgedRound] = {},
) -> SeriesFile:
    """Add nights to a series by compare-and-swap. Idempotent."""
    for _ in range(_ATTEMPTS):
        series, etag = _read(central, suite, platform)
        longer = extended(series, rows, calls, judged)
        if longer is series:
            return series
        try:
            central.swap_pointer(series_key(suite, platform), longer.model_dump_json().encode(), etag)
        except PreconditionFailedError:
            continue
        return longer
    raise UnavailableError(
        "other writers keep changing the document", where=central.store.url, key=series_key(suite, platform)
    )


def rebuild_series(
    central: CentralStore, suite: str, records: Iterable[str], platforms: Sequence[str]
) -> dict[str, SeriesFile]:
    """Rebuild the series of a suite's platforms from stored records.

    If the old series is readable, its decisions stay, because records do not contain them. Nights without a record
    stay too: `plumbline prune` removes records, never numbers. If a round has several records of a workload, the night
    is the record with the most parts, then the earliest: the others are confirmations.
    """
    nights: dict[str, dict[tuple[str, str], tuple[tuple[int, datetime], NightRow]]] = {name: {} for name in platforms}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="series") as pool:
        for platform, rank, row in pool.map(lambda name: _row(central, name), set(records)):
            if row is None or platform not in nights:
                continue
            key = (row.round or row.record, row.workload)
            other = nights[platform].get(key)
            if other is None or rank < other[0]:
                nights[platform][key] = (rank, row)
    rows = {name: [row for _, row in found.values()] for name, found in nights.items()}
    rebuilt = {}
    for name in platforms:
        try:
            old = read_series(central, suite, name)
        except InvalidInputError:
            old = SeriesFile(suite=suite, platform=name)
        read = {row.record for row in rows[name]}
        pruned = [
            old.row(place)
            for place, record in enumerate(old.record)
            if record not in read and not central.has_record(record)
        ]
        empty = SeriesFile(suite=suite, platform=name)
        rebuilt[name] = extended(empty, [*rows[name], *pruned], old.calls, old.judged)
    return rebuilt


def write_series(central: CentralStore, series: SeriesFile) -> None:
    """Replace a series by a rebuilt one."""
    key = series_key(series.suite, series.platform)
    for _ in range(_ATTEMPTS):
        pointer = central.read_pointer(key)
        try:
            central.swap_pointer(key, series.model_dump_json().encode(), pointer[1] if pointer else None)
        except PreconditionFailedError:
            continue
        return
    raise UnavailableError("other writers keep changing the document", where=central.store.url, key=key)


def records_of_rounds(central: CentralStore, suite: str) -> Iterator[str]:
    """Yield the record ids of all readable rounds of a suite."""
    for name in central.list_rounds(suite):
        try:
            verdict = central.get_round(*name)
        except InvalidInputError:
            continue
        if verdict.suite == suite:
            for result in verdict.platforms.values():
                yield from result.records


def _row(central: CentralStore, record_id: str) -> tuple[str, tuple[int, datetime], NightRow | None]:
    """Return a record's platform, its rank among the records of its round (the lowest is the night), and its row."""
    try:
        data = read_bytes(central.store, record_key(record_id), max_bytes=MAX_RECORD_BYTES)
        record = parse_record(data, where=record_id)
    except InvalidInputError:
        return "", (0, datetime.max.replace(tzinfo=UTC)), None
    return record.platform, (-len(record.spec.parts), record.started_at), row_of(record)


def _read(central: CentralStore, suite: str, platform: str) -> tuple[SeriesFile, str | None]:
    key = series_key(suite, platform)
    pointer = central.read_pointer(key)
    if pointer is None:
        return SeriesFile(suite=suite, platform=platform), None
    hint = "`plumbline history SUITE --rebuild` rebuilds the series from the records"
    try:
        return read_model(SeriesFile, pointer[0], where=f"{central.store.url}/{key}", max_bytes=_MAX_BYTES), pointer[1]
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}", hint=hint) from error
