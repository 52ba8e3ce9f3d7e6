"""A worker's clock orders no night: the engine decides on tonight, whatever time the worker shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.central.series import extend_series, read_series, rebuild_series
from plumbline.night.rounds import Assignment, Round, new_round_id
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.nights import Nights, decide_nights
from plumbline.night.rounds.plan import MAIN
from plumbline.night.rounds.series import read_history
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.record import night_time
from tests.memory_store import MemoryStore

from .test_nights import BASE, BEGIN, loaded, suite_of

NIGHTS = 6
NEXT_CENTURY = datetime(2100, 1, 1, tzinfo=UTC)


def at(record: LoadedRecord, round_id: str, when: datetime) -> LoadedRecord:
    changes = {"round_id": round_id, "started_at": when, "finished_at": when + timedelta(hours=1)}
    return LoadedRecord(record.record.replace(**changes), record.folder, record.arrays)


class Clocks:
    """Nights of one platform, whose worker shows its own time."""

    def __init__(self, folder: Path, *, is_named: bool) -> None:
        self.suite, self.is_named = suite_of(folder), is_named
        self.central = CentralStore(MemoryStore())

    def night(self, index: int, wrong: datetime | None = None) -> Nights:
        now = BEGIN + timedelta(days=index)
        round_id = f"upgrade-{index}" if self.is_named else new_round_id(now, "abcdef")
        round_ = Round(round_id, self.suite, {"unit": BASE.spec})
        record = at(loaded(index, 0.0), round_id, wrong or now + timedelta(minutes=5))
        gathered = GatheredRecords({Assignment("left", "unit", MAIN): record})
        later = now + timedelta(hours=1)
        nights = decide_nights(round_, gathered, read_history(round_, self.central), now=later)
        extend_series(self.central, "nightly", "left", nights["left"].rows)
        return nights


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("wrong", [BEGIN + timedelta(days=1), datetime(1970, 1, 2, tzinfo=UTC), NEXT_CENTURY])
def test_a_wrong_clock_silences_neither_its_night_nor_the_later_ones(
    tmp_path: Path, wrong: datetime, is_named: bool
) -> None:
    clocks = Clocks(tmp_path, is_named=is_named)
    for index in range(NIGHTS):
        nights = clocks.night(index, wrong if index == 3 else None)
        assert nights["left"].decisions, f"no decision in night {index}"
    series = read_series(clocks.central, "nightly", "left")
    assert [record[:5] for record in series.record] == [f"n{index:04d}" for index in range(NIGHTS)]


def test_a_rebuilt_series_has_the_controllers_times(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path, is_named=False)
    for index in range(3):
        clocks.night(index, NEXT_CENTURY if index == 1 else None)
        round_id = new_round_id(BEGIN + timedelta(days=index), "abcdef")
        when = NEXT_CENTURY if index == 1 else BEGIN + timedelta(days=index, minutes=5)
        for what, later in ((MAIN, 0), ("rerun", 1)):
            folder = tmp_path / f"{index}-{what}"
            folder.mkdir()
            record = at(loaded(index, 0.0, what), round_id, when + timedelta(hours=later)).record
            (folder / "record.json").write_text(record.replace(parts=()).model_dump_json())
            clocks.central.put_record(load_record(folder))
    kept = read_series(clocks.central, "nightly", "left")
    assert rebuild_series(clocks.central, "nightly", clocks.central.list_records(), ["left"])["left"] == kept


def test_an_accepted_record_ends_the_comparison_at_its_own_night(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path, is_named=False)
    book = BaselineBook(clocks.central)
    for index in range(2):
        clocks.night(index)
        round_id = new_round_id(BEGIN + timedelta(days=index), "abcdef")
        book.accept(at(loaded(index, 0.0), round_id, NEXT_CENTURY - timedelta(days=index)).record)
    round_ = Round("r", clocks.suite, {"unit": BASE.spec})
    accepted = read_history(round_, clocks.central).accepted["left"]["unit"]
    assert accepted == [BEGIN, BEGIN + timedelta(days=1)]


def test_a_name_that_only_looks_like_a_time_is_none() -> None:
    assert night_time("20261399-020000-x", BEGIN) == BEGIN
    assert night_time("20260102-030405-x", BEGIN) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert night_time("mine", BEGIN, BEGIN + timedelta(hours=23)) == BEGIN
    assert night_time("mine", BEGIN, BEGIN + timedelta(hours=25)) == BEGIN + timedelta(hours=25)
