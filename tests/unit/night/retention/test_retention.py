"""Pruning keeps drifted and accepted nights, removes references before objects, and can be interrupted anywhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plumbline.cli.main import main
from plumbline.data.stores import ObjectMissingError, Store, open_store, read_bytes
from plumbline.judge.history.metrics import row_of
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore, round_key
from plumbline.night.central.central_store import start_key
from plumbline.night.central.series import extend_series, read_series, rebuild_series, records_of_rounds
from plumbline.night.retention import choice, plan_sweep, remove
from plumbline.night.rounds.site import connect_reports
from plumbline.records import load_record
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import RoundVerdict
from tests.record_parts import record_parts
from tests.unit.judge.conftest import make_record
from tests.unit.night.baseline.test_baseline import suite_file

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
BASE = make_record().record


class Site:
    """A central store with one round a day, the oldest first."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.path = suite_file(tmp_path)
        self.suite: Suite = read_suite(self.path)
        self.central = CentralStore(open_store(self.suite.store))

    def record(self, name: str, round_id: str, content: bytes, when: datetime) -> RunRecord:
        folder = self.tmp_path / "made" / name
        folder.mkdir(parents=True)
        (folder / "rows.parquet").write_bytes(content)
        changes = {"record_id": name, "round_id": round_id, "started_at": when, "finished_at": when}
        record = BASE.replace(**changes, parts=record_parts(folder))
        (folder / RECORD_NAME).write_text(record.model_dump_json())
        self.central.put_record(load_record(folder))
        return record

    def round(self, name: str, days_ago: float, verdict: str = "pass", *, suite: str = "unit") -> None:
        when = NOW - timedelta(days=days_ago)
        main_record = self.record(f"{name}-main", name, name.encode(), when)
        self.record(f"{name}-x1", name, b"shared by many", when)
        content = {"verdict": verdict, "records": [f"{name}-main"]}
        judged = {"round": name, "suite": suite, "verdict": verdict, "platforms": {"left": content}}
        self.central.put_round(RoundVerdict.model_validate(judged))
        self.central.put_text(round_key(suite, name, "report.html"), "page")
        self.central.put_text(start_key(suite, name, when), "")
        row = row_of(main_record)
        if row is not None and suite == "unit":
            extend_series(self.central, "unit", "left", [row])

    def objects(self) -> set[str]:
        return {info.key for info in self.central.store.list()}

    def check(self) -> None:
        """Every record that is kept is whole, and every kept round and baseline finds its records."""
        into = self.tmp_path / f"into-{len(list(self.tmp_path.iterdir()))}"
        for name in self.central.list_records():
            self.central.get_record(name, into)
        known = set(self.central.list_records())
        for name in self.central.list_rounds():
            for result in self.central.get_round(*name).platforms.values():
                assert set(result.records) <= known
        for baseline in BaselineBook(self.central).everything()[0]:
            assert {one.record_id for one in (*baseline.records, *baseline.rejected)} <= known


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(choice, "NEWEST", 1)
    site = Site(tmp_path)
    site.round("old-pass", 200)
    site.round("old-drift", 199, "drift")
    site.round("old-accepted", 198)
    site.round("old-rejected", 197)
    site.round("old-inconclusive", 196, "inconclusive")
    site.round("other-suite", 195, suite="else")
    site.round("young", 3)
    site.round("last", 1)
    book = BaselineBook(site.central)
    for name in ("old-rejected", "old-accepted"):
        book.accept(site.central.get_record(f"{name}-main", tmp_path / "load").record)
    book.reject(BASE.spec_sha256, "left", "old-rejected-main")
    return site


def test_drifted_accepted_young_and_foreign_rounds_stay(site: Site) -> None:
    plan = plan_sweep(site.central, site.suite, now=NOW, keep_days=90)
    assert plan.choice.gone == ("old-inconclusive", "old-pass")
    assert plan.choice.kept == {
        "old-drift": "drifted", "old-accepted": "accepted", "old-rejected": "accepted",
        "young": "young", "last": "young",
    }  # fmt: skip
    before = site.objects()
    series = read_series(site.central, "unit", "left")
    remove(site.central, plan)
    gone = before - site.objects()
    assert {key for key in gone if not key.startswith("artifacts/")} == {
        key for key in before for name in plan.choice.gone if f"/{name}" in key or f"-{name}" in key
    }
    # The artifact that every experiment shares stays; the two rounds' own go.
    assert len([key for key in gone if key.startswith("artifacts/")]) == 2
    site.check()
    # Numbers outlive their records, also when the series is made again.
    assert read_series(site.central, "unit", "left") == series
    again = rebuild_series(site.central, "unit", records_of_rounds(site.central, "unit"), ["left"])["left"]
    assert again.record == series.record


class InterruptedRemovalError(Exception):
    pass


class _Dying:
    """A store that fails at the nth removal, as a killed process does."""

    def __init__(self, store: Store, left: int) -> None:
        self._store, self._left, self.url = store, left, store.url

    def delete(self, key: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise InterruptedRemovalError
        self._store.delete(key)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_an_interrupted_removal_leaves_no_reference_without_its_object_and_is_finished_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline.night.retention.sweep._AT_ONCE", 1)
    whole = site.central.store
    kept = {name for name in site.objects() if not any(gone in name for gone in ("old-pass", "old-inconclusive"))}
    interrupted = 0
    for left in range(13):
        site.central.store = _Dying(whole, left)  # type: ignore[assignment]
        try:
            remove(site.central, plan_sweep(site.central, site.suite, now=NOW, keep_days=90))
        except InterruptedRemovalError:
            interrupted += 1
        site.central.store = whole
        site.check()
    assert interrupted >= 3
    assert {key for key in site.objects() if not key.startswith("artifacts/")} == {
        key for key in kept if not key.startswith("artifacts/")
    }
    assert not plan_sweep(site.central, site.suite, now=NOW, keep_days=90).artifacts


def test_nothing_goes_while_a_round_may_run_or_a_baseline_cannot_be_read(site: Site) -> None:
    site.central.put_text(start_key("else", "running", NOW - timedelta(hours=1)), "")
    with pytest.raises(Exception, match="running has no verdict yet"):
        remove(site.central, plan_sweep(site.central, site.suite, now=NOW, keep_days=90))
    site.central.put_text(f"baselines/{BASE.spec_sha256}/left.json", "cut off {")
    with pytest.raises(Exception, match="repair the baseline first"):
        plan_sweep(site.central, site.suite, now=NOW, keep_days=90)


def test_a_record_that_cannot_be_read_keeps_every_artifact(site: Site) -> None:
    site.central.put_text("records/strange/record.json", "cut off {")
    plan = plan_sweep(site.central, site.suite, now=NOW, keep_days=90)
    assert (plan.unread, plan.artifacts) == (("strange",), ())


def test_a_round_of_unknown_age_stays(site: Site) -> None:
    site.central.put_round(RoundVerdict(round="dateless", suite="unit", verdict="pass"))
    assert plan_sweep(site.central, site.suite, now=NOW, keep_days=90).choice.kept["dateless"] == "age unknown"


def test_the_command_removes_only_where_it_is_asked_to(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("old-rejected", "old-pass"):
        site.central.put_text(f"rounds/unit/{name}/report.html", "<!--nights--><!--/nights-->")
    connect_reports(site.central, "unit", ["old-pass"], "")
    assert "../old-pass/report.html" in read_bytes(site.central.store, "rounds/unit/old-rejected/report.html").decode()
    before = site.objects()
    assert main(["store", "prune", str(site.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {"old-pass", "old-inconclusive"} <= set(shown["rounds"])
    assert not shown["applied"]
    assert site.objects() == before
    assert main(["store", "prune", str(site.path), "--apply"]) == 0
    assert "removed old-pass" in capsys.readouterr().out
    with pytest.raises(ObjectMissingError):
        site.central.get_round("unit", "old-pass")
    assert site.central.get_round("unit", "old-drift").verdict == "drift"
    assert b"old-pass" not in read_bytes(site.central.store, "rounds/unit/old-rejected/report.html")
    assert b"rounds/unit/old-pass/" not in read_bytes(site.central.store, "site/unit/index.html")
    assert main(["store", "prune", str(site.path), "--keep-days", "nan"]) == 2
    assert "--keep-days: nan is less than 1" in capsys.readouterr().err


def test_a_round_goes_and_one_of_that_name_of_a_different_suite_stays(site: Site) -> None:
    central, when = site.central, NOW - timedelta(days=201)
    for name, suite in (("shared", "unit"), ("shared", "else"), ("else", "unit")):
        site.record(f"{name}-of-{suite}", name, f"{name} {suite}".encode(), when)
        result = {"verdict": "pass", "records": [f"{name}-of-{suite}"]}
        judged = {"round": name, "suite": suite, "verdict": "pass", "platforms": {"left": result}}
        central.put_round(RoundVerdict.model_validate(judged))
        central.put_text(round_key(suite, name, "report.html"), "page")
        central.put_text(start_key(suite, name, when), "")
    plan = plan_sweep(central, site.suite, now=NOW, keep_days=90)
    assert {"shared", "else"} <= set(plan.choice.gone)
    remove(central, plan)
    assert central.get_round("else", "shared").suite == "else"
    assert central.get_round("else", "other-suite").suite == "else"
    left = site.objects()
    gone = {"rounds/unit/shared/report.html", "rounds/unit/else/report.html", "records/shared-of-unit/record.json"}
    assert not gone & left
    assert {"rounds/else/shared/report.html", "records/shared-of-else/record.json"} <= left
    site.check()
