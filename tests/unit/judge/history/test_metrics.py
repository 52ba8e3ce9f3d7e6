"""The metrics of a night are read from the record as it was measured."""

from __future__ import annotations

from plumbline.judge.history.metrics import read_metrics
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.record import RunRecord
from tests.unit.judge.conftest import make_record
from tests.unit.judge.test_speed import speed


def _with(evidence: SpeedEvidence) -> RunRecord:
    record = make_record().record
    return record.replace(evidence=record.evidence.replace(speed=evidence.to_json()))


def test_stalls_of_one_step_in_ten_show_in_the_tail_and_not_in_the_quartiles() -> None:
    plain = speed()
    stalling = plain.replace(step_seconds_p95=3 * plain.step_seconds)
    before, after = (read_metrics(_with(one)) for one in (plain, stalling))
    assert before["slow_step"] == plain.step_seconds_p95
    assert after["slow_step"] == 3 * plain.step_seconds
    assert before["throughput"] == after["throughput"] == plain.samples_per_second


def test_a_record_without_a_tail_has_none() -> None:
    assert read_metrics(_with(speed().replace(step_seconds_p95=None)))["slow_step"] is None
