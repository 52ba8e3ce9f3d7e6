"""Receipts of imports: what was read, how, and what was taken for the same."""

from __future__ import annotations

import json

import pytest

from plumbline.cli.main import main
from plumbline.data.datasets import build_dataset, read_manifest
from plumbline.schema.suite import DatasetSource


def receipt_of(path, tmp_path, **keys):
    source = DatasetSource(path=str(path), vocab_size=100, **keys)
    return build_dataset(source, "mine", "sequence-classification", tmp_path / "out").receipt


def test_a_receipt_says_lines_rows_dialect_and_columns(tmp_path):
    path = tmp_path / "t.tsv"
    rows = [f"some words {i}\t{'pos' if i % 2 else 'neg'}" for i in range(400)]
    rows[300], rows[303] = '"unbalanced start\tneg', 'it ends here"\tpos'
    path.write_text("sentence\tlabel\n\n" + "\n".join(rows) + "\n")
    receipt = receipt_of(path, tmp_path, train_rows=50)
    assert (receipt.files, receipt.lines, receipt.rows) == (1, 402, 400)
    assert receipt.read_as == (r"UTF-8, delimiter '\t', quotes belong to the text, a header",)
    assert receipt.columns == ("text 'sentence', label 'label'",)
    assert receipt.notes == ()


def test_a_receipt_names_merged_labels_empty_files_and_rows_of_several_lines(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    labels = ("caf\u00e9", "cafe\u0301", "tea", "tea ")
    rows = [f'"{i}{chr(10) * (i == 3)} row",{labels[i % 4]}' for i in range(20)]
    (folder / "a.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    (folder / "b.csv").write_text("")
    assert receipt_of(folder, tmp_path).notes == (
        "1 row of several lines: a.csv, line 5",
        "files without a row: b.csv",
        "labels read as the class caf\u00e9: 'cafe\\u0301', 'caf\\xe9'",
        "labels read as the class tea: 'tea', 'tea '",
    )


@pytest.mark.parametrize("labels", [("True", "true", "FALSE"), ("1.0", "1", "0")])
def test_merged_booleans_and_numbers_are_named(tmp_path, labels):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"row {i},{labels[i % 3]}\n" for i in range(30)))
    (note,) = receipt_of(path, tmp_path).notes
    assert all(ascii(label) in note for label in labels[:2])


def test_the_command_prints_the_receipt_that_the_manifest_has(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"row {i},{'xy'[i % 2]}\n" for i in range(30)))
    command = ["data", "import", str(path), "--name", "mine", "--out", str(tmp_path / "out"), "--train-rows", "8"]
    assert main(command) == 0
    assert "mine: read 31 lines, 30 rows of 1 file; 14 rows kept\n" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["mine"]["receipt"]
    manifest = read_manifest(tmp_path / "out")
    assert printed == manifest.receipt.to_json()


def test_how_rows_were_read_is_no_part_of_a_dataset_s_identity(tmp_path):
    """Rows imported in a different way are the same dataset: its spec and its accepted baselines stay."""
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"row {i},{'xy'[i % 2]}\n" for i in range(30)))
    receipt_of(path, tmp_path)
    made = read_manifest(tmp_path / "out")
    assert made.receipt is not None
    assert made.origins is not None
    assert made.replace(receipt=None, origins=None).digest == made.digest
    assert made.replace(source="other").digest != made.digest
