"""Origins of imported rows: the user's own file and line, for every row that a report may name."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.data.datasets import build_dataset, publish, row_origins
from plumbline.data.datasets.receipts import write_origins
from plumbline.data.datasets.rows import Row
from plumbline.data.stores import open_store
from plumbline.schema.delimited import Place
from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import CorruptDataError
from plumbline.schema.manifest import Manifest
from plumbline.schema.suite import DatasetSource


def imported(source, tmp_path, **keys):
    """Import and publish; return the store, the manifest, and the texts by row number."""
    out = tmp_path / "out"
    source = DatasetSource(path=str(source), vocab_size=100, rows_per_shard=7, **keys)
    manifest = build_dataset(source, "mine", "sequence-classification", out)
    (tmp_path / "store").mkdir()
    store = open_store(f"file://{tmp_path}/store")
    publish(out, store)
    tables = [pq.read_table(out / shard.key).to_pylist() for shard in manifest.shards]
    return store, manifest, {row["id"]: row["text"] for table in tables for row in table}


def test_every_row_of_a_folder_is_found_in_its_own_file_and_line(tmp_path):
    lines = {}
    (tmp_path / "in").mkdir()
    for part in ("a", "b"):
        rows = [f'"{part} {i}\nsecond line",{"xy"[i % 2]}' if i % 5 == 0 else f"{part} {i},x" for i in range(20)]
        text = "text,label\n\n" + "\n".join(rows) + "\n"
        (tmp_path / "in" / f"{part}.csv").write_text(text)
        lines[f"{part}.csv"] = text.splitlines()
    store, manifest, texts = imported(tmp_path / "in", tmp_path, train_rows=30)
    origins = row_origins(store, "mine", manifest.digest, texts)
    assert len(origins) == len(texts) == 38
    for row, (file, unit, number) in origins.items():
        assert unit == "line"
        assert texts[row].splitlines()[0] in lines[file][number - 1]
    assert str(origins[3]) == f"{origins[3].file}, line {origins[3].number}"
    assert row_origins(store, "mine", manifest.digest, [3, 900]) == {3: origins[3]}


@pytest.mark.parametrize(
    ("name", "unit", "first"), [("rows.jsonl", "line", 1), ("rows.json", "row", 1), ("rows.parquet", "row", 1)]
)
def test_rows_of_other_files_are_counted_from_one(tmp_path, name, unit, first):
    rows = [{"text": f"text {i}", "label": i % 2} for i in range(20)]
    path = tmp_path / name
    if unit == "line":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    store, manifest, texts = imported(path, tmp_path)
    origins = row_origins(store, "mine", manifest.digest, texts)
    assert {row: place.number - first for row, place in origins.items()} == {
        row: int(text.split()[1]) for row, text in texts.items()
    }
    assert {place[:2] for place in origins.values()} == {(name, unit)}


def test_origins_do_not_depend_on_the_folder_and_leave_the_content_as_it_was(tmp_path):
    digests = set()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "rows.csv"
        path.write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
        digests.add(imported(path, tmp_path / folder)[1].digest)
    assert len(digests) == 1


def test_a_dataset_without_origins_or_of_another_build_has_none(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
    store, manifest, _ = imported(path, tmp_path)
    assert row_origins(store, "mine", "0" * 64, [0]) == {}
    old = {key: value for key, value in manifest.to_json().items() if key != "origins"}
    manifest = Manifest.model_validate(old)
    (tmp_path / "store" / "mine" / "manifest.json").write_bytes(canonical_json(old))
    assert row_origins(store, "mine", manifest.digest, [0]) == {}


def test_origins_that_were_changed_in_the_store_are_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
    store, manifest, _ = imported(path, tmp_path)
    (tmp_path / "store" / "mine" / manifest.origins.key).write_bytes(b"x" * manifest.origins.size)
    with pytest.raises(CorruptDataError, match="does not match the manifest"):
        row_origins(store, "mine", manifest.digest, [0])


def test_long_names_of_files_take_no_memory_for_each_row(tmp_path):
    name = "x" * 10_000
    rows = (Row("text", 0, None, Place(name, "line", number)) for number in range(220_000))
    file = write_origins(tmp_path, rows, {})
    assert file.size < 1 << 20
    assert pq.read_table(tmp_path / file.key, columns=["number"]).num_rows == 220_000
