"""What a record's parts may weigh: exact sizes, from numbers that differ from each other."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.records.part_sizes import max_part_bytes, max_rows
from plumbline.schema.record import RunRecord
from tests.unit.judge.conftest import STEPS
from tests.unit.judge.made_records import edit, whole

MIB = 1 << 20


def made(**spec: Any) -> RunRecord:
    """Return a record with these keys in its spec: batches of 4, sequences of 8, 3 labels, 6 steps of the probe."""

    def change(content: dict[str, Any]) -> None:
        for path, value in spec.items():
            part, _, key = path.rpartition("__")
            (content["spec"][part] if part else content["spec"])[key] = value

    return edit(whole(), change).record


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return made(
        batch_size=5, data__sequence_length=11, model__max_position_embeddings=13, model__num_labels=7,
        probe__evaluation_rows=17, learn__evaluation_rows=19, learn__steps=23, learn__checkpoint_every=23,
        speed__steps=10,
    )  # fmt: skip


def test_rows_are_those_of_the_longest_part_and_of_the_largest_evaluation(record: RunRecord) -> None:
    assert max_rows(record.spec) == 23 * 5 + 19
    assert max_rows(made(batch_size=5, speed__steps=101, probe__evaluation_rows=99).spec) == 101 * 5 + 99
    assert max_part_bytes(record, "rows") == 64 * (23 * 5 + 19) + 65536


def test_no_spec_explains_more_than_64_million_rows() -> None:
    assert max_rows(made(batch_size=4096, learn__steps=200_000).spec) == 64_000_000


def test_each_part_of_arrays_has_a_limit(record: RunRecord) -> None:
    probe = record.evidence.probe
    assert probe is not None
    assert STEPS == 6
    expected = {
        "batches": 2 * 6 * 5 * (1 + 4 * 13) * 8,
        "sketches": len(probe.taps) * 64 * 8,
        "state": 7 * 65536,
        "evaluation": 19 * (2 + 7) * 8,
        "answers": 19 * 2 * 8,
    }
    assert {name: max_part_bytes(record, name) - MIB for name in expected} == expected


def test_the_longer_of_sequence_and_positions_counts() -> None:
    record = made(data__sequence_length=16, model__max_position_embeddings=16)
    longer = made(data__sequence_length=16, model__max_position_embeddings=32)
    assert max_part_bytes(longer, "batches") - max_part_bytes(record, "batches") == 2 * 6 * 4 * 4 * 16 * 8


def test_masked_lm_has_one_column_of_logits() -> None:
    record = made(task="masked-lm", model__num_labels=None, probe__evaluation_rows=10, learn__evaluation_rows=8)
    assert max_part_bytes(record, "evaluation") == 10 * 3 * 8 + MIB


def test_a_record_without_a_probe_explains_no_batch_and_no_tap() -> None:
    def without_probe(content: dict[str, Any]) -> None:
        content["spec"]["probe"] = content["evidence"]["probe"] = None

    record = edit(whole(), without_probe).record
    sizes = {name: max_part_bytes(record, name) - MIB for name in ("batches", "sketches", "state")}
    assert sizes == {"batches": 0, "sketches": 0, "state": 65536}


def test_an_experiment_has_batches_of_its_own_steps() -> None:
    def as_experiment(content: dict[str, Any]) -> None:
        content["experiment"] = {"experiment_id": "e", "suspect": "s", "steps": 5}

    record = edit(whole(), as_experiment).record
    assert max_part_bytes(record, "state") == (5 + 1) * 65536 + MIB


def test_only_an_experiment_that_captures_may_have_gigabytes() -> None:
    def as_experiment(*captures: dict[str, Any]) -> RunRecord:
        experiment = {"experiment_id": "e", "suspect": "s", "steps": 5, "captures": captures}
        return edit(whole(), lambda content: content.update(experiment=experiment)).record

    assert max_part_bytes(as_experiment({"stage": "forward", "names": ["head"], "step": 0}), "capture") == 4 << 30
    assert max_part_bytes(as_experiment(), "capture") == MIB
    assert max_part_bytes(whole().record, "capture") == MIB
