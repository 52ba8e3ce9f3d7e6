"""Completeness of the trainer's own records, for every task and several processes."""

from __future__ import annotations

import pytest

from plumbline.judge import compare
from plumbline.judge.compared import Comparisons
from plumbline.judge.whole import stands_alone
from plumbline.records import load_record
from tests.train.conftest import Workshop

PARTS = {
    "speed": {"steps": 10, "precision": "fp32"},
    "learn": {"steps": 5, "evaluate_every": 2, "checkpoint_every": 3, "evaluation_rows": 1000},
}


@pytest.mark.first(1)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_record_of_every_part_is_whole(workshop: Workshop, accumulation: int) -> None:
    spec = workshop.spec(**PARTS, optimizer={"accumulation_steps": accumulation})
    record = load_record(workshop.train(spec).folder)
    assert Comparisons().of(record, record).problems == ()
    assert compare(record, record, throughput=False).verdict == "pass"


@pytest.mark.long
def test_a_masked_lm_record_is_whole(masked: Workshop) -> None:
    record = load_record(masked.train(masked.spec(**PARTS)).folder)
    assert Comparisons().of(record, record).problems == ()


def test_a_record_of_an_experiment_is_whole(workshop: Workshop) -> None:
    body = {"steps": 2, "captures": [{"stage": "gradient", "names": [], "step": 1}]}
    record = load_record(workshop.experiment(workshop.spec(), body).folder)
    assert stands_alone(record)
