"""`compare` of two specs names the keys that differ, and of two datasets the classes, texts and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.spec_differences import spec_findings
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_bytes
from plumbline.schema.verdict import Finding
from tests.said import said

from .conftest import ROWS, make_record
from .made_records import Content, edit


def _other(*, classes: tuple[str, ...] = (), **changes: Any) -> LoadedRecord:
    """Return a record of a spec with these changes by dotted key."""

    def change(content: Content) -> None:
        spec = make_record().record.spec.model_dump()
        for key, value in changes.items():
            *parts, name = key.split("__")
            place = spec
            for part in parts:
                place = place[part]
            place[name] = value
        spec["data"]["class_names"] = classes
        made = make_record().record.spec.replace(**spec)
        content.update(spec=made.model_dump(), spec_sha256=made.digest)

    return edit(make_record(), change)


def _found(left: LoadedRecord, right: LoadedRecord) -> dict[str, Finding]:
    judgement = compare(left, right)
    assert judgement.verdict == "invalid"
    return {said(finding.metric): finding for finding in judgement.findings}


def test_each_key_of_the_spec_that_differs_is_named_with_both_values() -> None:
    left = _other()
    right = _other(optimizer__learning_rate=0.001, seed=2, learn={"steps": 20}, probe__steps=9)
    found = _found(left, right)
    assert (found["optimizer.learning_rate"].limit, found["optimizer.learning_rate"].observed) == ("0.0005", "0.001")
    assert (found["seed"].limit, found["seed"].observed) == ("1", "2")
    assert (found["learn"].limit, found["learn"].observed) == ("none", "present")
    assert (found["probe.steps"].limit, found["probe.steps"].observed) == ("6", "9")
    assert not any(name.startswith(("model", "data")) for name in found)


def _label(number: int) -> int:
    return int.from_bytes(bytes.fromhex(digest_bytes(number.to_bytes(8, "little", signed=True)))[:8], "little")


def _with_rows(record: LoadedRecord, texts: list[int], labels: list[int]) -> LoadedRecord:
    rows = {
        "row_id": np.arange(len(texts)),
        "text": np.array(texts, np.uint64),
        "label": np.array([_label(number) for number in labels], np.uint64),
    }
    return LoadedRecord(record.record, record.folder, record.arrays | {"rows": rows})


@pytest.mark.parametrize("classes", [("bad", "good"), ("good", "bad")])
def test_two_datasets_differ_by_texts_classes_and_labels(classes: tuple[str, ...]) -> None:
    """Colleagues who list the classes in a different order have the same labels by name."""
    texts = list(range(100, 100 + ROWS))
    labels = [row % 2 for row in range(ROWS)]
    left = _with_rows(_other(classes=("bad", "good")), texts, labels)
    theirs = [1 - label if classes == ("good", "bad") else label for label in labels]
    theirs[4] = 1 - theirs[4]
    # One text is missing, so that all later rows have moved up, and one is new.
    edited = [*texts[:10], *texts[11:], 999]
    right = _other(classes=classes, data__manifest_sha256="9" * 64)
    found = _found(left, _with_rows(right, edited, [*theirs[:10], *theirs[11:], theirs[10]]))
    assert found["data.manifest_sha256"].observed == "9" * 64
    assert ("data.class_names" in found) == (classes == ("good", "bad"))
    assert (
        said(found["same text, different label"].detail) == "1 of the 23 texts that both read once: row 4: bad → good"
    )
    assert said(found["texts only in the reference"].detail) == "1 of the 24 rows that the reference read: row 10"
    assert said(found["texts only in the candidate"].detail) == "1 of the 24 rows that the candidate read: row 23"
    assert (found["rows read of class 'bad'"].limit, found["rows read of class 'bad'"].observed) == ("12", "11")


def test_a_moved_row_has_both_numbers_and_the_list_is_bounded() -> None:
    texts = list(range(100, 100 + ROWS))
    left = _with_rows(_other(), texts, [0] * ROWS)
    right = _with_rows(_other(data__manifest_sha256="9" * 64), texts[::-1], [1] * ROWS)
    detail = _found(left, right)["same text, different label"].detail
    assert said(detail).startswith("24 of the 24 texts that both read once: row 0 (candidate: 23): label 0 → label 1; ")
    assert said(detail).count("→") == 5


@pytest.mark.parametrize("digests", ["ab", "ba"])
def test_datasets_of_other_tokenizers_are_told_apart_whichever_is_the_reference(digests: str) -> None:
    texts, labels = list(range(100, 100 + ROWS)), [0] * ROWS
    sides = [_with_rows(made, texts, labels) for made in (make_record(), _other(classes=("bad", "good")))]
    made = []
    for side, digest in zip(sides, digests, strict=True):
        data = side.record.evidence.data.replace(tokenizer_sha256=digest * 64)  # type: ignore[union-attr]
        record = side.record.replace(evidence=side.record.evidence.replace(data=data.to_json()))
        made.append(LoadedRecord(record, side.folder, side.arrays))
    assert ("a" * 64, "b" * 64) in {tuple(sorted((str(f.limit), str(f.observed)))) for f in spec_findings(*made)}
