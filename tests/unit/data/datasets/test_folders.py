"""Folders in every shape: each row of each file once, or one clear line that names the file."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from pathlib import Path

import pytest

from plumbline.cli.main import main

FILES = dict[str, "str | bytes | Path | None"]
"""By name: content, the target of a link, or `None` for a pipe."""


def rows(first: int = 0, last: int = 20) -> str:
    return "text,label\n" + "".join(f"row {n} of it,{'ab'[n % 2]}\n" for n in range(first, last))


def run(night: int, value: float = 100.0) -> str:
    return json.dumps([{"time": f"2026-08-{1 + night:02d}", "metric": "speed", "value": value}])


def make(folder: Path, files: FILES) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            os.mkfifo(path)
        elif isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "in"


A = rows()
B = rows(20, 40)
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
DATA: dict[str, tuple[FILES, int | str]] = {
    "one file": ({"in/a.csv": A}, 20),
    "two files": ({"in/a.csv": A, "in/b.csv": B}, 40),
    "nested folders": ({"in/x/y/a.csv": A, "in/x/b.csv": B}, 40),
    "names with spaces and accents": ({"in/a file (1).csv": A, "in/ü b.csv": B}, 40),
    "upper case": ({"in/A.CSV": A, "in/B.CSV": B}, 40),
    "a linked folder": ({"in/a.csv": A, "other/b.csv": B, "in/more": Path("../other")}, 40),
    "a linked file": ({"in/a.csv": A, "other/b.csv": B, "in/b.csv": Path("../other/b.csv")}, 40),
    "a folder that is a link": ({"other/a.csv": A, "other/b.csv": B, "in": Path("other")}, 40),
    "a folder within itself": ({"in/a.csv": A, "in/x/b.csv": B, "in/x/again": Path("..")}, 40),
    "a file under two names": ({"in/a.csv": A, "in/latest.csv": Path("a.csv")}, 20),
    "a folder under two names": ({"in/v3/a.csv": A, "in/latest": Path("v3")}, 20),
    "hidden files": ({"in/a.csv": A, "in/.b.csv": B, "in/._a.csv": b"\0\5", "in/.git/x": "x", "in/.#": Path("no")}, 20),
    "a writer's unfinished files": ({"in/a.csv": A, "in/_temporary/0/b.csv": B, "in/_SUCCESS": ""}, 20),
    "a card and a licence": ({"in/a.csv": A, "in/README.md": "x", "in/LICENSE": "x", "in/a.csv.sha256": "x"}, 20),
    "one file compressed": ({"in/a.csv": A, "in/b.csv.gz": gzip.compress(B.encode())}, 40),
    "a Delta table": ({"in/a.csv": A, "in/_delta_log/0.json": "{}"}, "deleted rows"),
    "a Delta table below": ({"in/x/a.csv": A, "in/x/_delta_log/0.json": "{}"}, "deleted rows"),
    "a partition of a Delta table": ({"in/a.csv": A, "_delta_log/0.json": "{}"}, "deleted rows"),
    "a Hudi table": ({"in/a.csv": A, "in/.hoodie/hoodie.properties": "x"}, "deleted rows"),
    "the data of an Iceberg table": ({"in/a.csv": A, "metadata/0.metadata.json": "{}"}, "deleted rows"),
    "a test set beside the rows": ({"in/reviews.csv": A, "in/reviews_testset.csv": B}, ", in a suite evaluation_path)"),
    "a document of two lists": (
        {"in/a.json": json.dumps({"data": [{"text": "a", "label": 0}] * 20, "test": [{"text": "b", "label": 1}] * 9})},
        "in/a.json: test: is beside `data` and would be left out",
    ),
    "a table of pandas": (
        {"in/a.json": json.dumps(
            {"schema": {"fields": []}, "data": [{"text": f"row {n}", "label": n % 2} for n in range(20)]}
        )}, 20,
    ),
    "a broken link": ({"in/a.csv": A, "in/b.csv": Path("none.csv")}, "in/b.csv: path: is not a file that can"),
    "a pipe": ({"in/a.csv": A, "in/b.csv": None}, "in/b.csv: path: is not a file that can be read"),
    "a file and its compressed copy": (
        {"in/a.csv": A, "in/a.csv.gz": gzip.compress(A.encode())}, "'a.csv' and 'a.csv.gz' have one name: their rows",
    ),
    "a pointer of Git LFS": ({"in/a.csv": A, "in/b.csv": LFS}, "in/b.csv: is a pointer of Git LFS (hint: fetch"),
    "a file that is cut off": ({"in/a.csv": A, "in/b.csv": B[:-10]}, "in/b.csv, line 21: has fewer fields"),
    "a copy that an editor left": ({"in/a.csv": A, "in/a.csv.bak": A}, "'a.csv.bak' is of an unsupported file type"),
    "other columns in one file": (
        {"in/a.csv": A, "in/b.csv": B.replace("text,label", "text,note")}, "in/b.csv: label: the column of the label",
    ),
    "a missing label": ({"in/a.csv": A, "in/b.csv": B.replace("25 of it,b", "25 of it,")}, "in/b.csv, line 7: label"),
    "no data file": ({"in/README.md": "x"}, "contains no data file"),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_a_folder_of_rows_is_imported_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    files, expected = DATA[name]
    folder, out = make(tmp_path, files), tmp_path / "out"
    code = main(["data", "import", str(folder), "--name", "mine", "--out", str(out), "--json"])
    printed = capsys.readouterr()
    if isinstance(expected, str):
        assert code in (2, 4)
        assert expected in printed.err
        assert "\n" not in printed.err.strip()
        assert not out.exists()
    else:
        assert (code, json.loads(printed.out)["mine"]["receipt"]["rows"]) == (0, expected)


def test_the_files_of_a_split_that_is_not_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, {"in/train.csv": A, "in/valid.csv": rows(20, 30), "in/test.csv": rows(30, 40)})
    assert main(["data", "import", str(folder), "--name", "mine", "--out", str(tmp_path / "out")]) == 0
    assert "unused: test.csv" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["_b.csv", "_more/b.csv", "readme.csv", "license.jsonl.gz"])
def test_a_file_of_rows_that_its_name_leaves_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = make(tmp_path, {"in/a.csv": A, f"in/{name}": B, "in/README.md": "x", "in/_SUCCESS": ""})
    assert main(["data", "import", str(folder), "--name", "mine", "--out", str(tmp_path / "out")]) == 0
    assert f"unused: {name}\n" in capsys.readouterr().out


@pytest.mark.parametrize("evaluation", ["in/b.csv", "in/../in/b.csv", "linked/b.csv"])
def test_a_file_that_evaluates_does_not_train_too(tmp_path: Path, evaluation: str) -> None:
    folder = make(tmp_path, {"in/a.csv": A, "in/b.csv": B, "linked": Path("in")})
    importing = ["data", "import", str(folder), "--name", "mine", "--out", str(tmp_path / "out")]
    assert main([*importing, "--evaluation", str(tmp_path / evaluation)]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [sum(shard["num_rows"] for shard in manifest[split]) for split in ("train", "evaluation")] == [20, 20]


def test_a_folder_of_splits_does_not_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, {"in/a.csv": A, "more/train.csv": A, "more/test.csv": B})
    importing = ["data", "import", str(folder), "--name", "mine", "--out", str(tmp_path / "out")]
    assert main([*importing, "--evaluation", str(tmp_path / "more")]) == 2
    assert "more: evaluation_path: names splits (hint: choose the files" in capsys.readouterr().err


def test_the_files_that_evaluate_replace_those_of_the_folder_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path, {"in/train.csv": A, "in/test.csv": rows(40, 50), "b.csv": B})
    importing = ["data", "import", str(folder), "--name", "mine", "--out", str(tmp_path / "out")]
    assert main([*importing, "--evaluation", str(tmp_path / "b.csv")]) == 0
    assert "unused: test.csv" in capsys.readouterr().out


def test_a_glob_names_a_link_that_leads_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, {"in/a.csv": A, "in/b.csv": Path("none.csv"), "in/c.csv/d.csv": B})
    pattern = ["data", "import", f"{folder}/*.csv", "--name", "mine", "--out", str(tmp_path / "out")]
    assert main(pattern) == 2
    assert "in/b.csv: path: is not a file that can be read" in capsys.readouterr().err
    (folder / "b.csv").unlink()
    assert main(pattern) == 0  # a folder is not a file that a pattern means


CSV = "time,metric,value\n2026-08-20,speed,100\n"
RUNS: dict[str, tuple[FILES, int | str]] = {
    "a file a night": ({f"in/{n}.json": run(n) for n in range(12)}, 12),
    "a folder a night": ({f"in/{n}/run.json": run(n) for n in range(12)}, 12),
    "tables": ({"in/a.csv": CSV}, 1),
    "JSON and tables": ({"in/a.json": run(0), "in/b.csv": CSV}, 2),
    "JSON and JSON lines": ({"in/a.json": run(0), "in/b.jsonl": run(1)[1:-1]}, 2),
    "one file compressed": ({"in/a.json": run(0), "in/b.json.gz": gzip.compress(run(1).encode())}, 2),
    "upper case": ({"in/A.JSON": run(0), "in/b.json": run(1)}, 2),
    "UTF-16": ({"in/a.json": run(0), "in/b.json": run(1).encode("utf-16")}, 2),
    "a linked folder": ({"in/a.json": run(0), "other/b.json": run(1), "in/more": Path("../other")}, 2),
    "a folder within itself": ({"in/a.json": run(0), "in/again": Path()}, 1),
    "hidden copies": ({"in/a.json": run(0), "in/.ipynb_checkpoints/a.json": run(1), "in/.b.json": run(2)}, 1),
    "a folder with a file's name": ({"in/a.json/b.json": run(0)}, 1),
    "settings beside the runs": ({"in/a.json": run(0), "in/config.json": '{"lr": 0.1}', "in/x.json": "[]"}, 1),
    "an empty file beside the runs": ({"in/a.json": run(0), "in/b.json": ""}, 1),
    "runs of pytest-benchmark": (
        {f"in/Linux/{n}.json": json.dumps({
            "datetime": f"2026-08-{1 + n:02d}T02:00:00", "benchmarks": [{"name": "step", "stats": {"mean": 1.0}}],
        }) for n in range(3)}, 3,
    ),
    "summaries of W&B": (
        {f"in/{n}/files/wandb-summary.json": json.dumps({"_timestamp": 1785000000 + 86400 * n, "loss": 1.0, "_step": 9})
         for n in range(3)}, 3,
    ),
    "a broken link": ({"in/a.json": run(0), "in/b.json": Path("none")}, "in/b.json: path: is not a file that"),
    "a file that is cut off": ({"in/a.json": run(0), "in/b.json": run(1)[:-3]}, "in/b.json: not JSON"),
    "event files of TensorBoard": ({"in/events.out.tfevents.1": b"\0\1"}, "the folder has no *.json file and no other"),
    "nothing": ({"in/README.md": "x"}, "the folder has no *.json file and no other table"),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_folder_of_runs_is_judged_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    files, expected = RUNS[name]
    folder = make(tmp_path, files)
    code = main(["history", "--from", str(folder), "--json"])
    printed = capsys.readouterr()
    if isinstance(expected, str):
        assert code in (2, 4)
        assert expected in printed.err
        assert "\n" not in printed.err.strip()
    else:
        assert json.loads(printed.out)["receipt"]["rows"] == expected


def test_files_of_a_folder_that_are_not_judged_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files: FILES = {
        "in/a.json": run(0),
        "in/b.parquet": b"PAR1",
        "in/c.json": "",
        "in/machine.json": '{"machine": "m5"}',
    }
    main(["history", "--from", str(make(tmp_path, files))])
    assert (
        "3 files without measurements, or of another kind: machine.json, c.json, b.parquet" in capsys.readouterr().out
    )


@pytest.mark.other_user
def test_a_folder_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = make(Path(name), {"in/a.json": run(0), "in/sub/b.json": run(1)})
        Path(name).chmod(0o755)
        command = ["history", "--from", str(folder), "--json"]
        assert main(command) == 3  # and every module is imported
        assert json.loads(capsys.readouterr().out)["receipt"]["rows"] == 2
        (folder / "sub").chmod(0)
        os.seteuid(65534)
        try:
            code = main(command)
        finally:
            os.seteuid(0)
    assert code == 2
    assert "in/sub: Permission denied" in capsys.readouterr().err
