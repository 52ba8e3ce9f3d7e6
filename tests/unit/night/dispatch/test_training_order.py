"""Order of a training: which records answer it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plumbline.night.dispatch import TrainingOrder, idempotency_key, job_key, record_id
from plumbline.schema.experiment import AbEvidence, AbOrder
from plumbline.schema.record import RunRecord, read_record
from tests.contract.records import make_record

AB = AbOrder(packages=(("torch", "2.12.0"),), num_blocks=2, seconds=60.0)


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return read_record(make_record(tmp_path / "made", "record-1", "aws")).replace(round_id="round-1", nonce="secret")


def order_of(record: RunRecord, **changes: Any) -> TrainingOrder:
    content = {
        "platform": "aws", "data": "file:///d", "outbox": "file:///o", "record_id": "record-1", "round_id": "round-1",
        "nonce": "secret", "spec": record.spec, "run_seconds": 60,
    }  # fmt: skip
    return TrainingOrder.model_validate({**content, **changes})


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, ()),
        ({"record_id": "record-0"}, ("record_id",)),
        ({"record_id": "record-2"}, ("record_id",)),
        ({"platform": "azure"}, ("platform",)),
        ({"round_id": "round-0"}, ("round_id",)),
        ({"attempt": 1}, ("attempt",)),
        ({"nonce": ""}, ("nonce",)),
        ({"nonce": "tomorrow"}, ("nonce",)),
        ({"experiment_id": "x"}, ("experiment",)),
        ({"ab": AB.to_json()}, ("ab",)),
        ({"platform": "gcp", "nonce": "x"}, ("platform", "nonce")),
    ],
)
def test_a_record_answers_its_own_order_only(
    record: RunRecord, changes: dict[str, Any], fields: tuple[str, ...]
) -> None:
    assert order_of(record, **changes).foreign_fields(record) == fields


def test_a_record_of_a_different_spec_is_foreign(record: RunRecord) -> None:
    for seed in (6, 8):
        assert order_of(record, spec=record.spec.replace(seed=seed)).foreign_fields(record) == ("spec_sha256",)


def test_an_experiments_record_answers_its_experiment_only(record: RunRecord) -> None:
    experiment = record.replace(experiment={"experiment_id": "x1", "steps": 1})
    assert order_of(record, experiment_id="x1").foreign_fields(experiment) == ()
    assert order_of(record).foreign_fields(experiment) == ("experiment",)
    assert order_of(record, experiment_id="x2").foreign_fields(experiment) == ("experiment",)


def test_an_ab_is_answered_by_the_record_that_repeats_its_order(record: RunRecord) -> None:
    for digest, fields in ((AB.digest, ()), ("0" * 64, ("ab",)), ("f" * 64, ("ab",))):
        evidence = AbEvidence.model_construct(order_sha256=digest)
        answer = record.model_copy(update={"evidence": record.evidence.model_copy(update={"ab": evidence})})
        assert order_of(record, ab=AB.to_json()).foreign_fields(answer) == fields
        assert order_of(record).foreign_fields(answer) == ("ab",)


@pytest.mark.parametrize("changes", [{"run_seconds": 0}, {"attempt": -1}, {"nonce": "x" * 129}, {"unknown": 1}])
def test_an_impossible_order_is_refused(record: RunRecord, changes: dict[str, Any]) -> None:
    assert order_of(record, run_seconds=0.5, nonce="x" * 128, attempt=0).attempt == order_of(record).attempt == 0
    assert order_of(record).job == "job"
    with pytest.raises(ValidationError):
        order_of(record, **changes)


def test_each_training_and_each_attempt_has_its_name() -> None:
    assert job_key("nightly", "round-1", "aws", "bert") == "round-1-nightly-aws-bert"
    assert record_id("round-1-aws-bert", 1) == "round-1-aws-bert-1"
    names = {
        record_id(job_key(suite, f"{'r' * 60}-{number}", "aws", "bert"), attempt)
        for suite in ("nightly", "weekly")
        for number in (1, 2)
        for attempt in (0, 1)
    }
    assert len(names) == 8
    assert idempotency_key("a-b", "c") != idempotency_key("a", "b-c")
    assert max(map(len, names)) <= 63
