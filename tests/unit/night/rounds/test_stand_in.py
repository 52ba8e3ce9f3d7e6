"""A failed or incomplete reference does not affect other platforms."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.night.rounds import Assignment
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest, stand_in
from plumbline.night.rounds.plan import MAIN
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import PlatformResult
from tests.kept_results import keep
from tests.said import said
from tests.unit.judge.conftest import make_record, spec
from tests.unit.suites import round_of, suite_of

FAILED = {"exit": {"status": "failed", "code": "non-finite", "message": "the loss is nan", "part": "probe"}}


def judged(**changed: dict[str, Any]) -> dict[str, PlatformResult]:
    """Return the results of three platforms, aws as reference, with `changed` plans."""
    suite = suite_of("aws", "azure", "gcp")
    records = {Assignment(name, "w", MAIN): record(name, **changed.get(name, {})) for name in suite.platforms}
    return keep(judge_harvest(round_of(suite, spec()), GatheredRecords(records), {}, {}, {})["w"])


def record(name: str, **plan: Any) -> LoadedRecord:
    return make_record(**{**plan, "record": {"platform": name, "record_id": name, **plan.get("record", {})}})


def without_states(name: str) -> LoadedRecord:
    made = record(name)
    return LoadedRecord(made.record, made.folder, {**made.arrays, "state": {}})


def test_three_equal_platforms_pass() -> None:
    assert {name: result.verdict for name, result in judged().items()} == {
        "aws": "pass", "azure": "pass", "gcp": "pass",
    }  # fmt: skip


def test_a_reference_whose_training_failed_is_invalid_and_the_others_are_judged() -> None:
    results = judged(aws={"record": FAILED})
    assert {name: result.verdict for name, result in results.items()} == {
        "aws": "invalid", "azure": "pass", "gcp": "pass",
    }  # fmt: skip
    assert any("the loss is nan" in said(finding.detail) for finding in results["aws"].findings)
    assert any("aws, the reference, failed; compared with azure" in said(note.text) for note in results["gcp"].notes)


def test_a_drift_is_seen_beside_a_reference_that_failed() -> None:
    results = judged(aws={"record": FAILED}, gcp={"loss_factor": 1.01})
    assert (results["azure"].verdict, results["gcp"].verdict) == ("pass", "drift")


@pytest.mark.parametrize(
    ("records", "reference"),
    [
        ({"aws": record("aws"), "azure": record("azure")}, "aws"),
        ({"azure": record("azure"), "gcp": record("gcp")}, "azure"),
        ({"aws": without_states("aws"), "azure": record("azure", record=FAILED), "gcp": record("gcp")}, "gcp"),
        ({"aws": without_states("aws"), "azure": record("azure", record=FAILED)}, "aws"),
        ({}, "aws"),
    ],
)
def test_the_first_whole_record_stands_in(records: dict[str, LoadedRecord], reference: str) -> None:
    assert stand_in(round_of(suite_of("aws", "azure", "gcp"), spec()), records) == reference
