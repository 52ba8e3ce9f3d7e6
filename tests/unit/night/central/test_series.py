"""Series in the central store: no night is lost to a concurrent writer, a damaged file or a rebuild."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from plumbline.data.stores import ObjectInfo
from plumbline.judge.history.metrics import extended
from plumbline.night.central import CentralStore
from plumbline.night.central.series import (
    extend_series,
    read_series,
    rebuild_series,
    records_of_rounds,
    series_key,
    write_series,
)
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.series import CallEntry, JudgedRound, NightRow, SeriesFile
from plumbline.schema.verdict import PlatformResult, RoundVerdict
from tests.memory_store import MemoryStore
from tests.unit.judge.conftest import make_record
from tests.unit.judge.test_speed import speed

BEGIN = datetime(2026, 11, 1, 2, tzinfo=UTC)


def night(number: int, **changes: Any) -> NightRow:
    content = {
        "record": f"r-{number}", "round": f"round-{number}", "time": BEGIN + timedelta(days=number), "workload": "bert",
        "spec": "s", "lock": "l", "hardware": "h", "software": "w", "metrics": {"throughput": 100.0 + number},
    }  # fmt: skip
    return NightRow.model_validate({**content, **changes})


class Racing(MemoryStore):
    """Store in which a faster writer adds a night before each of the next swaps."""

    races = 0
    faster = 0

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        if self.races:
            races, self.races, self.faster = self.races - 1, 0, self.faster + 1
            extend_series(CentralStore(self), "nightly", "aws", [night(100 + self.faster)])
            self.races = races
        return super().swap(key, data, if_match=if_match)


def test_a_series_is_kept_by_suite_and_platform() -> None:
    central = CentralStore(MemoryStore())
    assert series_key("nightly", "aws") == "series/nightly/aws.json"
    assert read_series(central, "nightly", "aws") == SeriesFile(suite="nightly", platform="aws")
    made = extend_series(central, "nightly", "aws", [night(1), night(2)])
    assert read_series(central, "nightly", "aws") == made
    assert made.record == ("r-1", "r-2")
    assert len(read_series(central, "nightly", "azure")) == len(read_series(central, "weekly", "aws")) == 0


def test_nights_decisions_and_verdicts_are_added_and_known_ones_write_nothing() -> None:
    central = CentralStore(MemoryStore())
    judged = {"round-1": JudgedRound(time=BEGIN.timestamp(), verdict="pass")}
    extend_series(central, "nightly", "aws", [night(1)])
    assert extend_series(central, "nightly", "aws", [], judged=judged).judged == judged
    assert read_series(central, "nightly", "aws").judged == judged
    etag = central.store.stat("series/nightly/aws.json").etag
    again = extend_series(central, "nightly", "aws", [night(1)], judged=judged)
    assert (again.record, central.store.stat("series/nightly/aws.json").etag) == (("r-1",), etag)


def test_a_concurrent_writers_nights_stay() -> None:
    store = Racing()
    store.races = 7
    made = extend_series(CentralStore(store), "nightly", "aws", [night(1)])
    assert set(made.record) == {"r-1", *(f"r-{100 + number}" for number in range(1, 8))}
    assert read_series(CentralStore(store), "nightly", "aws") == made


def test_a_rebuilt_series_replaces_an_absent_a_damaged_and_a_concurrently_written_one() -> None:
    series = extended(SeriesFile(suite="nightly", platform="aws"), [night(1)])
    store = Racing()
    write_series(CentralStore(store), series)
    assert read_series(CentralStore(store), "nightly", "aws") == series
    store.races = 2
    write_series(CentralStore(store), series)
    assert read_series(CentralStore(store), "nightly", "aws") == series
    assert store.faster == 2
    store.swap("series/nightly/aws.json", b"cut off {", if_match=store.stat("series/nightly/aws.json").etag)
    with pytest.raises(InvalidInputError, match=r"memory://test/series/nightly/aws\.json.*--rebuild"):
        extend_series(CentralStore(store), "nightly", "aws", [night(2)])
    write_series(CentralStore(store), series)
    assert read_series(CentralStore(store), "nightly", "aws") == series


BASE = make_record().record.replace(parts=())


class Site:
    """Central store with records of several platforms."""

    def __init__(self) -> None:
        self.central = CentralStore(MemoryStore())

    def keep(self, record_id: str, number: int, platform: str = "aws", **changes: Any) -> None:
        """Keep a record of night `number`."""
        began = BEGIN + timedelta(days=number)
        content = {"round_id": f"round-{number}", "started_at": began, "finished_at": began + timedelta(hours=9)}
        record = BASE.replace(record_id=record_id, platform=platform, **{**content, **changes})
        record = record.replace(spec_sha256=record.spec.digest)
        self.central.store.create(f"records/{record_id}/record.json", record.model_dump_json().encode())

    def rebuilt(self, *platforms: str) -> dict[str, SeriesFile]:
        return rebuild_series(self.central, "nightly", self.central.list_records(), platforms or ("aws",))


def test_a_rebuild_reads_every_platforms_records_and_skips_unreadable_ones() -> None:
    site = Site()
    for number in (2, 1):
        site.keep(f"aws-{number}", number)
    site.keep("azure-1", 1, "azure")
    site.keep("gcp-1", 1, "gcp")
    site.keep("failed", 3, exit={"status": "failed", "code": "x", "message": "y"})
    site.central.store.create("records/damaged/record.json", b"cut off {")
    rebuilt = site.rebuilt("aws", "azure")
    assert {name: series.record for name, series in rebuilt.items()} == {
        "aws": ("aws-1", "aws-2"), "azure": ("azure-1",),
    }  # fmt: skip
    assert {(series.suite, series.platform) for series in rebuilt.values()} == {
        ("nightly", "aws"),
        ("nightly", "azure"),
    }


def test_the_earliest_record_of_a_round_is_the_night() -> None:
    for names in (("b", "a"), ("a", "b")):
        site = Site()
        for late, name in enumerate(names):
            site.keep(name, 1, started_at=BEGIN + timedelta(minutes=late))
        site.keep("without-round-1", 1, round_id="")
        site.keep("without-round-2", 2, round_id="")
        assert set(site.rebuilt()["aws"].record) == {names[0], "without-round-1", "without-round-2"}


def test_the_record_with_most_parts_is_the_night_though_a_confirmation_was_earlier() -> None:
    whole = {
        "spec": BASE.spec.replace(speed={"steps": 20}).to_json(),
        "evidence": BASE.evidence.replace(speed=speed().to_json()).to_json(),
    }
    for names in (("b", "a"), ("a", "b")):
        site = Site()
        site.keep(names[0], 1)
        site.keep(names[1], 1, started_at=BEGIN + timedelta(days=1, hours=1), **whole)
        assert site.rebuilt()["aws"].record == (names[1],)


def test_each_workload_of_a_round_has_its_night() -> None:
    site = Site()
    for name in ("bert", "mlm"):
        site.keep(name, 1, spec=BASE.spec.replace(workload=name).to_json())
    assert site.rebuilt()["aws"].record == ("bert", "mlm")


def test_a_rebuild_keeps_decisions_and_nights_whose_records_were_pruned() -> None:
    site = Site()
    judged = {"round-1": JudgedRound(time=BEGIN.timestamp(), verdict="pass")}
    call = CallEntry(record="r-1", metric="throughput", verdict="drift", reason="creep")
    extend_series(site.central, "nightly", "aws", [night(1), night(2)], calls=[call], judged=judged)
    site.keep("aws-3", 3)
    # This record is kept, and is not of the records to read: it is not a night of this suite.
    site.keep("r-2", 2)
    rebuilt = rebuild_series(site.central, "nightly", ["aws-3"], ["aws"])["aws"]
    assert rebuilt.record == ("r-1", "aws-3")
    assert (rebuilt.calls, rebuilt.judged) == ((call,), judged)
    # The row of a record that is read anew is the record's own, though the old series has it too.
    again = rebuild_series(site.central, "nightly", ["aws-3", "r-2"], ["aws"])["aws"]
    assert again.record == ("r-1", "r-2", "aws-3")
    assert again.row(1).workload == BASE.spec.workload
    # A round still names the record that an interrupted removal deleted.
    named = rebuild_series(site.central, "nightly", ["aws-3", "r-1"], ["aws"])["aws"]
    assert named.record == ("r-1", "aws-3")


def test_a_confirmation_that_an_old_series_has_as_a_night_is_dropped_by_a_rebuild() -> None:
    site = Site()
    extend_series(site.central, "nightly", "aws", [night(1, record="rerun"), night(2, record="damaged")])
    site.keep("main", 1)
    site.keep("rerun", 1, started_at=BEGIN + timedelta(days=1, hours=1))
    site.central.store.create("records/damaged/record.json", b"cut off {")
    assert site.rebuilt()["aws"].record == ("main",)


def test_the_records_of_a_suites_rounds_are_found_beside_damaged_rounds() -> None:
    central = CentralStore(MemoryStore())
    for number, suite in enumerate(("nightly", "weekly", "nightly", "daily")):
        platforms = {
            name: PlatformResult(verdict="pass", records=(f"{name}-{number}-a", f"{name}-{number}-b"))
            for name in ("aws", "gcp")
        }
        central.put_round(RoundVerdict(round=f"r{number}", suite=suite, verdict="pass", platforms=platforms))
    central.put_text("rounds/nightly/r1-damaged/round.json", "cut off {")
    assert list(records_of_rounds(central, "nightly")) == [
        f"{name}-{number}-{part}" for number in (0, 2) for name in ("aws", "gcp") for part in "ab"
    ]


def test_a_long_series_is_read() -> None:
    central = CentralStore(MemoryStore())
    made = extend_series(central, "nightly", "aws", [night(number) for number in range(2000)])
    assert central.store.stat("series/nightly/aws.json").size > 64 << 10
    assert read_series(central, "nightly", "aws") == made


def test_a_damaged_series_is_rebuilt_from_the_records_alone() -> None:
    site = Site()
    site.keep("aws-1", 1)
    site.central.put_text("series/nightly/aws.json", "cut off {")
    assert site.rebuilt()["aws"].record == ("aws-1",)
