"""Users' data files: imported correctly and reproducibly, or refused in one line."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from plumbline.data.datasets import build_dataset
from plumbline.data.datasets.classes import class_notes
from plumbline.schema.errors import PlumblineError
from plumbline.schema.manifest import ClassRows
from plumbline.schema.suite import DatasetSource
from tests.unit.data.datasets.people_files import FILES, ROWS, make

IMPORTED = [case for case in FILES if not case.refused]
REFUSED = [case for case in FILES if case.refused]


def build(case, folder, out):
    source = DatasetSource(path=make(case, folder), vocab_size=300, rows_per_shard=16, **case.options)
    return build_dataset(source, "mine", "sequence-classification", out)


def rows_of(out, manifest):
    """Return the rows as the trainer reads them, with class names."""
    names = [entry.name for entry in manifest.classes]
    tables = [pq.read_table(out / shard.key).to_pylist() for shard in manifest.shards]
    rows = [row for table in tables for row in table]
    return sorted((row["text"], *([row["text_pair"]] if manifest.pairs else []), names[row["label"]]) for row in rows)


@pytest.mark.parametrize("case", IMPORTED, ids=lambda case: case.name)
def test_a_file_is_imported_right_and_the_same_every_time(tmp_path, case):
    manifest = build(case, tmp_path / "in", tmp_path / "out")
    assert tuple(entry.name for entry in manifest.classes) == case.classes
    assert manifest.receipt.rows == 40
    result = rows_of(tmp_path / "out", manifest)
    assert result == sorted(case.rows or ROWS)
    counts = [(entry.train_rows, entry.evaluation_rows) for entry in manifest.classes]
    assert sum(train for train, _ in counts) == sum(shard.num_rows for shard in manifest.train)
    assert sum(evaluation for _, evaluation in counts) == sum(shard.num_rows for shard in manifest.evaluation)
    again = build(case, tmp_path / "in", tmp_path / "again")
    assert again.digest == manifest.digest


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_file_that_cannot_be_meant_is_refused_in_one_line(tmp_path, case):
    with pytest.raises(PlumblineError) as caught:
        build(case, tmp_path / "in", tmp_path / "out")
    assert case.refused in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("group", sorted({case.same_as for case in IMPORTED if case.same_as}))
def test_the_same_rows_in_another_format_have_the_same_content_digest(tmp_path, group):
    digests = {
        case.name: build(case, tmp_path / str(number), tmp_path / f"out-{number}").content_sha256
        for number, case in enumerate(IMPORTED)
        if case.same_as == group
    }
    assert len(digests) > 1
    assert len(set(digests.values())) == 1, digests


def test_ready_made_splits_are_kept_apart(tmp_path):
    case = next(case for case in IMPORTED if case.name == "splits")
    out = tmp_path / "out"
    manifest = build(case, tmp_path, out)
    train = [row["text"] for shard in manifest.train for row in pq.read_table(out / shard.key).to_pylist()]
    assert sorted(train) == sorted(text for text, _ in ROWS[:30])


def test_the_classes_do_not_depend_on_the_order_of_the_rows(tmp_path):
    result = []
    for name, rows in (("a", ROWS), ("b", ROWS[::-1])):
        path = tmp_path / f"{name}.csv"
        path.write_text("label,text\n" + "".join(f'{label},"row {i}"\n' for i, (_, label) in enumerate(rows)))
        source = DatasetSource(path=str(path), vocab_size=100)
        result.append(build_dataset(source, "mine", "sequence-classification", tmp_path / name))
    assert [[entry.name for entry in manifest.classes] for manifest in result] == [["negative", "positive"]] * 2


def test_files_that_evaluate_may_be_named_apart(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"row {i},{'xy'[i % 2]}\n" for i in range(20)))
    (tmp_path / "b.jsonl").write_text("".join(f'{{"text": "held out {i}", "label": "x"}}\n' for i in range(5)))
    source = DatasetSource(path=str(tmp_path / "a.csv"), evaluation_path=str(tmp_path / "b.jsonl"), vocab_size=100)
    manifest = build_dataset(source, "mine", "sequence-classification", tmp_path / "out")
    assert [(entry.name, entry.train_rows, entry.evaluation_rows) for entry in manifest.classes] == [
        ("x", 10, 5),
        ("y", 10, 0),
    ]


def test_imbalanced_and_missing_classes_are_named():
    rows = [("common", 95, 10), ("rare", 5, 0), ("never", 0, 0)]
    classes = [ClassRows(name=name, train_rows=train, evaluation_rows=held_out) for name, train, held_out in rows]
    assert class_notes(classes) == (
        "no row of the train split has the class never",
        "imbalanced: 95% of the train rows have the class common",
        "no row of the evaluation split has the class rare, never",
        "imbalanced: 100% of the evaluation rows have the class common",
    )
