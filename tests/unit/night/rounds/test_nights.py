"""Several nights with a real store: series, engine, verdict and alerts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from plumbline.data.stores import open_store, read_bytes
from plumbline.night.alerts import AlertState, update
from plumbline.night.central import CentralStore
from plumbline.night.central.series import read_series, rebuild_series, series_key
from plumbline.night.rounds import Round
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.night_findings import apply_nights, past_nights
from plumbline.night.rounds.nights import decide_nights, night_reruns
from plumbline.night.rounds.outcome import join, sum_up
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.night.rounds.series import count_unjudged, read_history, write_nights
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.suite import Alert, Suite
from plumbline.schema.verdict import RoundVerdict
from tests.kept_results import keep
from tests.said import said
from tests.unit import suites
from tests.unit.judge.conftest import make_record
from tests.unit.judge.test_speed import speed

BASE = make_record().record
BEGIN = datetime(2026, 1, 1, 2, tzinfo=UTC)
ALERTS = (
    Alert(on=("drift", "invalid", "recovered", "unjudged", "improved"), block="slack-webhook/team", reminder_hours=1e6),
)


def suite_of(tmp_path: Path, **gates: object) -> Suite:
    return suites.suite_of(
        "left", workloads=("unit",), store=f"file://{tmp_path}/central", gates=gates,
        recipe={"batch_size": 4, "probe": None, "speed": {"steps": 20}}, dispatch={"quorum": 1, "experiments": 0},
        platform={"data": f"file://{tmp_path}/d", "outbox": f"file://{tmp_path}/o"},
    )  # fmt: skip


def loaded(index: int, slower: float, what: str = MAIN) -> LoadedRecord:
    made = make_record()
    evidence = made.record.evidence.replace(speed=speed(slower=slower).to_json())
    changes = {
        "record_id": f"n{index:04d}-{what}", "platform": "left", "evidence": evidence.to_json(),
        "started_at": BEGIN + timedelta(days=index), "finished_at": BEGIN + timedelta(days=index, hours=1),
        "round_id": f"round-{index}",
    }  # fmt: skip
    return LoadedRecord(made.record.replace(**changes), made.folder, made.arrays)


class Nights:
    """A round without Prefect: read, judge, rerun, judge again, sum up, write, alert."""

    def __init__(self, tmp_path: Path, **gates: object) -> None:
        self.suite = suite_of(tmp_path, **gates)
        self.central = CentralStore(open_store(self.suite.store))
        self.alerts = AlertState()
        self.sent: list[str] = []
        self.reruns = 0

    def night(self, index: int, slower: float | None, rerun: Callable[[], float] | None = None) -> RoundVerdict:
        round_ = Round(f"round-{index}", self.suite, {"unit": BASE.spec})
        result = GatheredRecords()
        if slower is not None:
            result.records[Assignment("left", "unit", MAIN)] = loaded(index, slower)
        history = read_history(round_, self.central)
        nights = decide_nights(round_, result, history)
        for assignment in night_reruns(nights):
            self.reruns += 1
            result.records[assignment] = loaded(index, rerun() if rerun else slower or 0.0, assignment.what)
        nights = decide_nights(round_, result, history)
        results = apply_nights(judge_harvest(round_, result, {}, {}, past_nights(nights, 0.02)), nights, 0.02)
        verdict = sum_up(round_, {"left": join({work: of["left"] for work, of in results.items() if "left" in of})})
        now = BEGIN + timedelta(days=index, hours=2)
        verdict = count_unjudged(round_, verdict, history.series, {"unit": {"left": loaded(0, 0)}}, now)
        write_nights(round_, verdict, nights, {"unit": {"left": loaded(0, 0)}}, central=self.central, now=now)
        if verdict.verdict in {"drift", "inconclusive"}:  # an invalid one names this test's folder
            keep(verdict)
        self.central.put_round(verdict)
        before = len(self.alerts.pending)
        self.alerts = update(self.alerts, verdict, ALERTS, now)
        self.sent += [f"{item.subject}\n{item.body}" for item in self.alerts.pending[before:]]
        return verdict


def noise(seed: int, count: int) -> list[float]:
    return np.random.default_rng(seed).normal(0, 0.01, count).tolist()


@pytest.mark.long
def test_a_creep_fails_the_round_and_sends_one_alert_with_since(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    values = noise(3, 75)
    verdicts = {}
    for index, value in enumerate(values):
        crept = min(max(0, index - 39) * 0.004, 0.08)
        verdicts[index] = nights.night(index, value + crept, lambda crept=crept: crept)
    first = next(index for index, item in verdicts.items() if item.verdict == "drift")
    assert 48 <= first <= 66
    # Equal software: the loss alerts once, beyond the limit, and is known then.
    assert sum(item.verdict == "drift" for item in verdicts.values()) == 1
    assert all(verdicts[index].verdict == "pass" for index in range(40))
    throughput = [item for item in nights.sent if "history.throughput" in item or "throughput" in item]
    assert len([item for item in nights.sent if ": drift on left" in item]) == 1, nights.sent
    assert "since 2026-02-" in throughput[0]
    assert nights.reruns < 4 * 40


def test_a_slow_night_that_goes_away_in_the_reruns_is_a_pass(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    for index, value in enumerate(noise(4, 40)):
        nights.night(index, value, lambda: 0.0)
    verdict = nights.night(40, 0.12, lambda: 0.001)
    assert verdict.verdict == "pass"
    assert any(
        "reruns of tonight do not show it" in said(finding.detail) for finding in verdict.platforms["left"].findings
    )
    # Confirmations never enter the series.
    series = read_series(nights.central, "nightly", "left")
    assert len(series) == 41
    assert all(name.endswith("-main") for name in series.record)


def test_nights_without_a_record_are_alerted_as_unjudged(tmp_path: Path) -> None:
    nights = Nights(tmp_path, unjudged_nights=3)
    for index in range(4):
        nights.night(index, 0.0)
    counts = {}
    # Three rounds on the first of these days, then one a day; the fourth round is retried once.
    for name, hours in (("4a", 0), ("4b", 2), ("4c", 4), ("5", 24), ("5", 26), ("6", 48), ("7", 72), ("8", 96)):
        round_ = Round(f"round-{name}", nights.suite, {"unit": BASE.spec})
        verdict = RoundVerdict(
            round=f"round-{name}", suite="nightly", verdict="inconclusive",
            platforms={"left": {"verdict": "inconclusive", "unavailable": "no worker"}},
        )  # fmt: skip
        now = BEGIN + timedelta(days=4, hours=hours)
        history = read_history(round_, nights.central)
        verdict = count_unjudged(round_, verdict, history.series, {"unit": {"left": loaded(0, 0)}}, now)
        counts[name] = verdict.platforms["left"].unjudged_nights
        decided = decide_nights(round_, GatheredRecords(), history)
        write_nights(round_, verdict, decided, {"unit": {"left": loaded(0, 0)}}, central=nights.central, now=now)
        nights.alerts = update(nights.alerts, verdict, ALERTS, now)
    subjects = [item.subject for item in nights.alerts.pending if item.event == "unjudged"]
    assert subjects == ["[plumbline] nightly: unjudged on left: not judged for 3 nights"]
    assert counts == {"4a": 0, "4b": 0, "4c": 0, "5": 0, "6": 3, "7": 4, "8": 5}


def test_a_retried_round_counts_by_its_last_verdict(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.night(0, None)
    nights.night(0, 0.0)
    series = read_series(nights.central, "nightly", "left")
    assert [judged.verdict for judged in series.judged.values()] == ["pass"]


@pytest.mark.long
def test_lasting_gain_is_alerted_as_improved_once(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    for index, value in enumerate(noise(5, 60)):
        gained = 0.08 if index >= 40 else 0.0
        nights.night(index, value - gained, lambda gained=gained: -gained)
    improved = [item.subject for item in nights.alerts.pending if item.event == "improved"]
    assert any("throughput is better than its reference: accept a new baseline" in item for item in improved)
    assert len(improved) == len(set(improved))


def test_a_series_is_rebuilt_from_the_records(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    for index, value in enumerate(noise(6, 12)):
        nights.night(index, value)
        folder = tmp_path / "records" / str(index)
        folder.mkdir(parents=True)
        record = loaded(index, value).record.replace(parts=())
        (folder / "record.json").write_text(record.model_dump_json())
        nights.central.put_record(load_record(folder))
    kept = read_series(nights.central, "nightly", "left")
    again = rebuild_series(nights.central, "nightly", nights.central.list_records(), ["left"])["left"]
    assert again == kept
    nights.central.put_text(series_key("nightly", "left"), "cut off {")
    assert rebuild_series(nights.central, "nightly", nights.central.list_records(), ["left"])["left"].time == kept.time


def test_a_damaged_series_is_invalid_and_is_not_overwritten(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.night(0, 0.0)
    nights.central.put_text(series_key("nightly", "left"), "cut off {")
    verdict = nights.night(1, 0.0)
    assert verdict.verdict == "invalid"
    assert "--rebuild" in said(verdict.platforms["left"].findings[-1].detail)
    assert read_bytes(nights.central.store, series_key("nightly", "left")).decode() == "cut off {"


def test_a_record_that_lacks_evidence_is_no_night(tmp_path: Path) -> None:
    """Its numbers are of a shorter training: they would become the reference of later nights."""
    nights = Nights(tmp_path)
    nights.night(0, 0.0)
    round_ = Round("round-1", nights.suite, {"unit": BASE.spec})
    made = loaded(1, 0.0)
    lacking = LoadedRecord(made.record, made.folder, {**made.arrays, "state": {}})
    gathered = GatheredRecords({Assignment("left", "unit", MAIN): lacking})
    decided = decide_nights(round_, gathered, read_history(round_, nights.central))
    assert (decided["left"].rows, decided["left"].decisions) == ((), ())
