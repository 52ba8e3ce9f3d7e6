"""Import of users' rows: complete, or one error line with file, row and column."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.data.datasets import build_dataset
from plumbline.data.datasets.files import locate
from plumbline.data.datasets.readers import read_rows
from plumbline.data.datasets.rows import ColumnOptions
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.suite import DatasetSource

COLUMNS = ColumnOptions("text", "label")
GOOD_ROWS = [(f"this is row number {i}, with a comma and “quotes”", i % 3) for i in range(50)]


def write(path, rows, names=("text", "label")):
    if path.suffix == ".csv":
        quoted = "".join(f'"{text}",{label}\n' for text, label in rows)
        path.write_text(f"{names[0]},{names[1]}\n{quoted}", encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows), encoding="utf-8"
        )
    else:
        pq.write_table(pa.table({names[0]: [row[0] for row in rows], names[1]: [row[1] for row in rows]}), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_all_rows_of_a_good_file_come_in_whole_and_in_order(tmp_path, suffix):
    path = write(tmp_path / f"rows{suffix}", GOOD_ROWS)
    assert [(row.text, int(row.label)) for row in read_rows(path, COLUMNS)] == GOOD_ROWS


def test_a_file_sorted_by_label_is_shuffled_before_it_is_split(tmp_path):
    path = write(tmp_path / "rows.csv", [(f"row {i}", int(i >= 50)) for i in range(100)])
    out = tmp_path / "out"
    manifest = build_dataset(DatasetSource(path=str(path)), "mine", "sequence-classification", out)
    labels = pq.read_table(out / manifest.evaluation[0].key).column("label").to_pylist()
    assert 4 <= sum(labels) <= 16


BAD = [
    ("csv", "text,label\na,0\n,1\n", "line 3: text: the text is missing"),
    ("csv", "text,label\na,0\n   ,1\n", "line 3: text: the text is only white space"),
    ("csv", "text,label\na,0\nb\n", "line 3: has fewer fields than the header"),
    ("csv", "text,label\na,b,0\n", "line 2: has more fields than the header"),
    ("csv", 'text,label\n"a,0\n', "not CSV in UTF-8"),
    ("csv", "body,label\na,0\n", "text: the column does not exist (found: body, label)"),
    ("csv", "", "the file is empty"),
    ("jsonl", '{"text": "a", "label": NaN}\n', "line 1: label: the label is NaN"),
    ("jsonl", '{"text": 3, "label": 0}\n', "line 1: text: the text is a int, not a string"),
    ("jsonl", '{"text": "\\ud800", "label": 0}\n', "line 1: text: the text is not valid Unicode"),
    ("jsonl", '{"text": "a", "label": 0}\n\nnope\n', "line 3: not JSON"),
    ("jsonl", '{"text": "a", "label": ' + "9" * 5000 + "}", "line 1: not JSON"),
    ("jsonl", "[" * 100_000, "line 1: not JSON"),
    ("jsonl", "[1, 2]\n", "line 1: is not a JSON object"),
    ("jsonl", json.dumps({"text": "x" * 100_001, "label": 0}), "line 1: text: the text has 100,001 characters"),
    ("parquet", "these bytes are not Parquet", "not Parquet"),
]


@pytest.mark.parametrize(("kind", "content", "message"), BAD)
def test_a_bad_row_is_named_by_file_row_and_column(tmp_path, kind, content, message):
    path = tmp_path / f"rows.{kind}"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        list(read_rows(path, COLUMNS))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=300) | st.text(alphabet='text,label\n\r"{}[]:0123\x00é', max_size=120).map(str.encode)
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_whatever_the_bytes_the_answer_is_rows_or_one_line(tmp_path, kind, content):
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(b"text,label\n" * (kind == "csv") + content)
    result: list[object] = []
    try:
        result += read_rows(path, COLUMNS)
    except InvalidInputError as error:
        result.append(error)
    assert all("\n" not in str(item) if isinstance(item, InvalidInputError) else item.text.strip() for item in result)


def test_a_parquet_file_whose_text_is_no_utf8_is_refused(tmp_path):
    text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    table = pa.table({"text": text, "label": [0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InvalidInputError, match="not Parquet"):
        list(read_rows(tmp_path / "rows.parquet", COLUMNS))


PEAK = """
import sys
from pathlib import Path
import pyarrow as pa
from plumbline.data.datasets.rows import ColumnOptions
from plumbline.data.datasets.readers import read_rows
characters = sum(len(row.text) for row in read_rows(Path(sys.argv[1]), ColumnOptions()))
print(characters, pa.default_memory_pool().max_memory())
"""


def test_a_large_row_group_of_parquet_is_read_piece_by_piece(tmp_path):
    path = tmp_path / "rows.parquet"
    texts = [random.Random(number).randbytes(2000).hex() for number in range(8000)]
    pq.write_table(pa.table({"text": texts, "label": [0, 1] * 4000}), path, row_group_size=8000)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, timeout=300, check=True
    )
    characters, peak = map(int, done.stdout.split())
    assert characters == 32_000_000
    assert peak < path.stat().st_size / 2


def test_nan_and_null_of_a_parquet_file_are_missing_labels_and_whole_floats_are_not(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "label": [1.0, float("nan")]}), path)
    with pytest.raises(InvalidInputError, match="row 2: label: the label is NaN"):
        list(read_rows(path, COLUMNS))
    pq.write_table(pa.table({"text": ["a", "b"], "label": pa.array([1, None])}), path)
    with pytest.raises(InvalidInputError, match="row 2: label: the label is missing"):
        list(read_rows(path, COLUMNS))


def test_labels_are_not_asked_for_in_language_modelling(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text\n" + "".join(f"line {i} of text\n" for i in range(20)))
    manifest = build_dataset(DatasetSource(path=str(path)), "lines", "masked-lm", tmp_path / "out")
    assert manifest.num_labels is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a row", 0), ("one", 1), ("b", 0)] * 3, "has 9 rows, fewer than 10"),
        ([("a row", 1)] * 20, "all rows have the same label"),
    ],
)
def test_too_little_to_train_on_is_refused(tmp_path, rows, message):
    path = write(tmp_path / "rows.csv", rows)
    with pytest.raises(InvalidInputError, match=message):
        build_dataset(DatasetSource(path=str(path)), "mine", "sequence-classification", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(("name", "message"), [("rows.xlsx", "unsupported file type"), ("rows.csv", "no such file")])
def test_a_path_that_cannot_be_read_is_a_wrong_configuration(tmp_path, name, message):
    with pytest.raises(ConfigurationError, match=message):
        build_dataset(DatasetSource(path=str(tmp_path / name)), "mine", "sequence-classification", tmp_path / "out")


def test_a_build_that_fails_leaves_no_folder_that_was_not_there(tmp_path):
    path = write(tmp_path / "rows.csv", [("the same label everywhere", 1)] * 50)
    kept = tmp_path / "kept"
    (kept / "there").mkdir(parents=True)
    for out in (tmp_path / "new" / "deep" / "out", kept / "there", kept / "beside"):
        with pytest.raises(InvalidInputError, match="all rows have the same label"):
            build_dataset(DatasetSource(path=str(path)), "mine", "sequence-classification", out)
    assert not (tmp_path / "new").exists()
    assert list(kept.iterdir()) == [kept / "there"]


def test_a_disk_without_room_is_one_clear_line_and_leaves_nothing(tmp_path):
    path = write(tmp_path / "rows.csv", [(f"row {i} " + "word " * 100, i % 2) for i in range(200)])
    out = tmp_path / "out"
    command = [sys.executable, "-m", "plumbline", "data", "import", str(path), "--name", "mine", "--out", str(out)]
    # The shell's limit on the length of a file: 20 blocks of 512 or 1,024 bytes. It is for Python's own files too: it
    # keeps what it could write of a compiled module, which then breaks everybody.
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 20 && exec "$@"', "sh", *command],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith(f"plumbline: {out}: no room left: ")
    assert "free some space" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not out.exists()


OFFLINE = """
import os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = sys.argv[1]
from pathlib import Path
from plumbline.cli.main import main
sys.exit(main(["data", "import", "stanfordnlp/imdb", "--name", "imdb", "--out", sys.argv[1]]))
"""


def test_a_hub_name_without_network_is_one_clear_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 3
    lines = [line for line in done.stderr.splitlines() if line.startswith("plumbline:")]
    assert len(lines) == 1
    assert "stanfordnlp/imdb" in lines[0]
    assert "export the dataset to CSV, JSONL or Parquet" in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("line", [1, 2, 62, 5000])
def test_the_line_of_a_byte_that_is_no_utf8_is_named(tmp_path, end, line):
    lines = [b"text,label", *(f"caf\u00e9 {i},{i % 2}".encode() for i in range(6000))]
    lines[line - 1] += " caf\u00e9".encode("latin-1")
    path = tmp_path / "latin.csv"
    path.write_bytes(b"\xef\xbb\xbf" + end.join(lines))
    with pytest.raises(InvalidInputError) as caught:
        list(read_rows(path, COLUMNS))
    assert str(caught.value).startswith(f"{path}, line {line}: not CSV in UTF-8: the byte 0xe9 ")


FOLDERS = {
    "one file": (["reviews.csv"], "reviews.csv", ""),
    "files without splits": (["2024.csv", "2025.csv"], "2024.csv 2025.csv", ""),
    "files of one split": (["train-0.csv", "train-1.csv"], "train-0.csv train-1.csv", ""),
    "train and test": (["train.csv", "test.csv"], "train.csv", "test.csv"),
    "validation before test": (["train.csv", "test.csv", "val.csv"], "train.csv", "val.csv"),
    "folders": (["train/a.csv", "test/a.csv"], "train/a.csv", "test/a.csv"),
    "shards": (["train-00000-of-00001.csv", "validation-00000-of-00001.csv"], "train-00000-of-00001.csv",
               "validation-00000-of-00001.csv"),
    "years": (["train2017.csv", "val2017.csv"], "train2017.csv", "val2017.csv"),
    "capitals": (["TRAIN.csv", "TEST.csv"], "TRAIN.csv", "TEST.csv"),
    "sets": (["trainset.csv", "testset.csv"], "trainset.csv", "testset.csv"),
    "camel case": (["reviewsTrain.csv", "reviewsTest.csv"], "reviewsTrain.csv", "reviewsTest.csv"),
    "a word that contains one": (["contest.csv", "latest.csv"], "contest.csv latest.csv", ""),
    "test beside data": (["reviews.csv", "reviews_test.csv"], "refused", "reviews.csv"),
    "validation beside data": (["reviews.csv", "reviews-dev.csv"], "refused", "reviews.csv"),
    "holdout beside data": (["reviews.csv", "holdout.csv"], "refused", "reviews.csv"),
    "hold-out beside data": (["reviews.csv", "hold-out.csv"], "refused", "reviews.csv"),
    "test folder beside data": (["a.csv", "test/a.csv"], "refused", "a.csv"),
    "train, test and data": (["train.csv", "test.csv", "more.csv"], "refused", "more.csv"),
    "validation and test only": (["val.csv", "test.csv"], "refused", "none of them is for training"),
}  # fmt: skip
"""Files of a folder; those that train and those that evaluate, or what a refusal names."""


@pytest.mark.parametrize(("files", "train", "evaluation"), FOLDERS.values(), ids=FOLDERS)
def test_rows_held_out_by_their_name_are_never_training_rows(tmp_path, files, train, evaluation):
    for name in files:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("text,label\na,1\n")
    if train == "refused":
        with pytest.raises(ConfigurationError, match=evaluation):
            locate(str(tmp_path / "data"), tmp_path)
        return
    located = locate(str(tmp_path / "data"), tmp_path)
    assert " ".join(file.key for file in located.train) == train
    assert " ".join(file.key for file in located.evaluation) == evaluation


def test_the_class_names_that_datasets_wrote_into_parquet_are_the_classes(tmp_path):
    import datasets  # noqa: PLC0415 - slow to import

    names = ["negative", "positive"]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    rows = {"text": [f"row {i}" for i in range(20)], "label": [i % 2 for i in range(20)]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "rows.parquet"))
    source = DatasetSource(path=str(tmp_path / "rows.parquet"), vocab_size=100)
    manifest = build_dataset(source, "mine", "sequence-classification", tmp_path / "out")
    assert [entry.name for entry in manifest.classes] == names
