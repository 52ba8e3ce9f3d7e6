"""Runs of two machine classes are not compared as one, and a shift of cost within a step is not a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from plumbline.judge import judge_round
from plumbline.judge.history.metrics import row_of
from plumbline.night.central.series import extend_series, read_series
from plumbline.night.rounds import Round
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.night_findings import apply_nights, past_nights
from plumbline.night.rounds.nights import PlatformNight, decide_nights, night_reruns
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.night.rounds.series import read_history
from plumbline.night.rounds.software import machine_cause
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.verdict import Finding, PlatformResult
from tests.kept_results import keep
from tests.said import said
from tests.unit.judge.test_speed import SLOW, speed
from tests.unit.night.rounds.test_nights import BASE, Nights, loaded, noise

PAST = 40
ONE = BASE.fingerprint
OTHER = ONE.replace(cpu=ONE.cpu.replace(model="another processor"))


def _on(record: LoadedRecord, fingerprint: Fingerprint, evidence: SpeedEvidence | None = None) -> LoadedRecord:
    changes = {} if evidence is None else {"evidence": record.record.evidence.replace(speed=evidence.to_json())}
    return LoadedRecord(record.record.replace(fingerprint=fingerprint, **changes), record.folder, record.arrays)


def test_threads_and_instructions_are_settings_and_not_another_machine() -> None:
    fewer = ONE.replace(cpu=ONE.cpu.replace(num_threads=ONE.cpu.num_threads + 1, isa="DEFAULT"))
    assert fewer.hardware_class == ONE.hardware_class
    assert OTHER.hardware_class != ONE.hardware_class


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path)
    rows = [row_of(_on(loaded(index, value), ONE).record) for index, value in enumerate(noise(3, PAST))]
    extend_series(nights.central, "nightly", "left", [row for row in rows if row is not None])
    return nights


def _tonight(
    nights: Nights, main: LoadedRecord, rerun: LoadedRecord, baseline: LoadedRecord | None = None
) -> tuple[PlatformResult, Mapping[str, PlatformNight], int]:
    """Judge a night as a round does; also return how many reruns it asked for."""
    round_ = Round(f"round-{PAST}", nights.suite, {"unit": BASE.spec})
    found = GatheredRecords({Assignment("left", "unit", MAIN): main})
    baselines = {"unit": {"left": baseline}} if baseline else {}
    history = read_history(round_, nights.central)
    asked = night_reruns(decide_nights(round_, found, history, baselines))
    for assignment in asked:
        name = f"{main.record.record_id}-{assignment.what}"
        found.records[assignment] = LoadedRecord(rerun.record.replace(record_id=name), rerun.folder, rerun.arrays)
    decided = decide_nights(round_, found, history, baselines)
    judged = judge_harvest(round_, found, baselines, {}, past_nights(decided, 0.02))
    return keep(apply_nights(judged, decided, 0.02)["unit"]["left"]), decided, len(asked)


def _finding(result: PlatformResult, check: str) -> Finding:
    return next(finding for finding in result.findings if finding.check == check)


def test_a_rerun_on_another_machine_class_answers_nothing(nights: Nights) -> None:
    slow, fast_elsewhere = _on(loaded(PAST, 0.1), ONE), _on(loaded(PAST, 0.0), OTHER)
    result, _, asked = _tonight(nights, slow, fast_elsewhere)
    assert asked == 4
    finding = _finding(result, "history.throughput")
    assert finding.outcome == "inconclusive"
    assert f"4 reruns ran on {OTHER.hardware_class}, the training on {ONE.hardware_class}" in said(finding.detail)
    here, _, _ = _tonight(nights, slow, _on(loaded(PAST, 0.0), ONE))
    assert _finding(here, "history.throughput").outcome == "pass"


def test_a_first_night_on_another_machine_class_is_not_compared_with_the_nights_before(nights: Nights) -> None:
    slow = _on(loaded(PAST, 0.3), OTHER)
    result, decided, asked = _tonight(nights, slow, slow, baseline=_on(loaded(0, 0.0), ONE))
    assert asked == 0
    assert {one.reason for one in decided["left"].decisions} == {"learning"}
    finding = _finding(result, "speed.throughput")
    assert (finding.outcome, finding.observed) == ("inconclusive", None)
    assert f"the reference ran on {ONE.hardware_class}, the candidate on {OTHER.hardware_class}" in said(finding.detail)
    assert not result.causes


def test_a_rerun_on_another_machine_class_neither_confirms_nor_refutes_a_drop() -> None:
    baseline, slow = _on(loaded(0, 0.0), ONE), _on(loaded(1, 0.3), ONE)
    for rerun in (_on(loaded(1, 0.3, "rerun"), OTHER), _on(loaded(1, 0.0, "rerun"), OTHER)):
        result = judge_round({"left": slow}, "left", {"left": baseline}, reruns={"left": rerun})["left"]
        assert _finding(result, "speed.throughput").outcome == "inconclusive"
        assert any(f"the rerun ran on {OTHER.hardware_class}" in said(note.text) for note in result.notes)
    same = judge_round({"left": slow}, "left", {"left": baseline}, reruns={"left": _on(loaded(1, 0.3, "rerun"), ONE)})
    assert _finding(same["left"], "speed.throughput").outcome == "drift"


def _failed(rerun: LoadedRecord) -> LoadedRecord:
    record = rerun.record.replace(exit={"status": "failed", "code": "error", "message": "x"})
    return LoadedRecord(record, rerun.folder, rerun.arrays)


def _of_one_step(rerun: LoadedRecord) -> LoadedRecord:
    speed = rerun.record.evidence.speed
    assert speed is not None
    return _on(rerun, ONE, speed.replace(steps=1))


def _with_speed_spec(made: LoadedRecord) -> LoadedRecord:
    spec = made.record.spec.replace(speed={"steps": 100, "checks": False})
    return LoadedRecord(made.record.replace(spec=spec, spec_sha256=spec.digest), made.folder, made.arrays)


@pytest.mark.parametrize("spoiled", [_failed, _of_one_step])
def test_a_rerun_without_its_evidence_neither_confirms_nor_refutes_a_drop(
    spoiled: Callable[[LoadedRecord], LoadedRecord],
) -> None:
    baseline, slow, fast = (_with_speed_spec(_on(loaded(*made), ONE)) for made in ((0, 0.0), (1, 0.5), (1, 0.0)))
    for rerun, outcome in ((fast, "pass"), (spoiled(fast), "inconclusive"), (spoiled(slow), "inconclusive")):
        result = judge_round({"left": slow}, "left", {"left": baseline}, reruns={"left": rerun})["left"]
        assert _finding(result, "speed.throughput").outcome == outcome


def test_reruns_that_failed_answer_no_question(nights: Nights) -> None:
    result, _, asked = _tonight(nights, _on(loaded(PAST, 0.1), ONE), _failed(_on(loaded(PAST, 0.0), ONE)))
    assert asked == 4
    finding = _finding(result, "history.throughput")
    assert finding.outcome == "inconclusive"
    assert "4 reruns lacked evidence: the rerun failed: x: they do not count" in said(finding.detail)


def test_signs_of_another_machine_class_name_no_cause() -> None:
    baseline, slow = _on(loaded(0, 0), ONE, speed()), _on(loaded(1, 0), ONE, speed(**SLOW["slow-device"]))
    elsewhere = _on(loaded(1, 0), OTHER, speed(**SLOW["slow-device"]))
    assert machine_cause(baseline, [slow, slow]) is not None
    assert machine_cause(baseline, [slow, elsewhere]) is None
    assert machine_cause(baseline, [elsewhere, elsewhere]) is None


def test_a_shift_within_the_step_asks_for_no_rerun_and_names_both_phases(nights: Nights) -> None:
    plain = speed()
    moved = speed(breakdown={"data_wait": 0.011, "backward": 0.030})
    result, _, asked = _tonight(nights, _on(loaded(PAST, 0), ONE, moved), _on(loaded(PAST, 0), ONE, moved),
                                baseline=_on(loaded(0, 0), ONE, plain))  # fmt: skip
    assert asked == 0
    finding = _finding(result, "history.data_wait")
    assert finding.outcome == "pass"
    assert "a shift of cost" in said(finding.detail)
    assert "a step against the accepted record: data_wait +10 ms, backward -10 ms, all phases +0 ms" in said(
        finding.detail
    )
    assert not result.causes


def test_a_part_that_costs_the_whole_is_a_loss_and_no_shift(nights: Nights) -> None:
    lost = speed(breakdown={"data_wait": 0.021})
    record = _on(loaded(PAST, 0), ONE, lost)
    result, decided, asked = _tonight(nights, record, record, baseline=_on(loaded(0, 0), ONE, speed()))
    assert asked == 4
    assert "shift" not in {one.reason for one in decided["left"].decisions}
    assert _finding(result, "history.throughput").outcome == "inconclusive"
    assert "this night's machine" in said(_finding(result, "history.data_wait").detail)
    assert [(cause.code, cause.sure) for cause in result.causes] == [("loader", "likely")]
    assert len(read_series(nights.central, "nightly", "left")) == PAST
