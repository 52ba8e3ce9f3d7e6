"""Storage of series files (nightly results per platform) in the central store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from plumbline.judge.history.metrics import extended, row_of
from plumbline.night.central.central_store import CentralStore
from plumbline.schema.base import read_model
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.series import CallEntry, JudgedRound, NightRow, SeriesFile

_AT_ONCE = 8


def series_key(suite: str, platform: str) -> str:
    """Return the central store key of a series."""
    return f"series/{suite}/{platform}.json"


def read_series(central: CentralStore, suite: str, platform: str) -> SeriesFile:
    """Return the series, empty if absent; raise `InvalidInputError` if damaged."""
    return _parsed(central, suite, platform, central.read_document(series_key(suite, platform)))


def extend_series(
    central: CentralStore,
    suite: str,
    platform: str,
    rows: Sequence[NightRow],
    *,
    calls: Sequence[CallEntry] = (),
    judged: Mapping[str, JudgedRound] = {},
) -> SeriesFile:
    """Append nights to a stored series. Idempotent."""
    longer = SeriesFile(suite=suite, platform=platform)

    def extend(data: bytes | None) -> bytes | None:
        nonlocal longer
        series = _parsed(central, suite, platform, data)
        longer = extended(series, rows, calls, judged)
        return longer.model_dump_json().encode() if longer is not series else None

    central.change_document(series_key(suite, platform), extend)
    return longer


def rebuild_series(
    central: CentralStore, suite: str, records: Iterable[str], platforms: Sequence[str]
) -> dict[str, SeriesFile]:
    """Rebuild the series of a suite's platforms from stored records.

    If the old series is readable, its decisions stay, because records do not contain them. Nights without a record
    stay too: `plumbline store prune` removes records, never numbers. If a round has several records of a workload, the
    night is the record with the most parts, then the earliest: the others are confirmations.
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
    """Replace a stored series with a rebuilt one."""
    central.change_document(series_key(series.suite, series.platform), lambda _: series.model_dump_json().encode())


def records_of_rounds(central: CentralStore, suite: str) -> Iterator[str]:
    """Yield the ids of all records in a suite's readable rounds."""
    for name in central.list_rounds(suite):
        if (verdict := central.find_round(*name)) is not None:
            for result in verdict.platforms.values():
                yield from result.records


def _row(central: CentralStore, record_id: str) -> tuple[str, tuple[int, datetime], NightRow | None]:
    """Convert a record to (platform, order within the round, series row)."""
    record = central.find_record(record_id)
    if record is None:
        return "", (0, datetime.max.replace(tzinfo=UTC)), None
    return record.platform, (-len(record.spec.parts), record.started_at), row_of(record)


def _parsed(central: CentralStore, suite: str, platform: str, data: bytes | None) -> SeriesFile:
    if data is None:
        return SeriesFile(suite=suite, platform=platform)
    hint = "`plumbline history SUITE --rebuild` rebuilds the series from the records"
    try:
        return read_model(SeriesFile, data, where=f"{central.store.url}/{series_key(suite, platform)}")
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}", hint=hint) from error
