"""`plumbline data`: build, push, verify and import by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plumbline.cli.main import main

SUITE = """
name = "demo"
store = "file://{root}/central"
reference = "a"
datasets.reviews = {{ grammar_seed = 7, train_rows = 64, evaluation_rows = 16, vocab_size = 300 }}
workloads.tiny = {{ model = "tiny", data = "reviews", seed = 7, batch_size = 8, probe = {{ steps = 2 }} }}
platforms.a = {{ work_pool = "a", data = "file://{root}/a", outbox = "file://{root}/oa" }}
platforms.b = {{ work_pool = "b", data = "file://{root}/b", outbox = "file://{root}/ob" }}
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(SUITE.format(root=tmp_path))
    return str(path)


def answer_of(capsys, *argv):
    code = main([*argv])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_build_push_and_verify_give_every_platform_the_same_content(suite, tmp_path, capsys):
    _, built, _ = answer_of(capsys, "data", "build", suite, "--out", str(tmp_path / "built"), "--json")
    assert built["reviews"]["train_rows"] == 64
    folder = str(tmp_path / "built" / "reviews")
    _, pushed, _ = answer_of(capsys, "data", "push", folder, "--suite", suite, "--json")
    assert {entry["manifest"] for entry in pushed.values()} == {built["reviews"]["manifest"]}
    assert [entry["written"] for entry in pushed.values()] == [3, 3]
    code, verified, _ = answer_of(capsys, "data", "verify", "reviews", "--suite", suite, "--json")
    assert code == 0
    assert set(verified) == {"a", "b"}
    _, again, _ = answer_of(capsys, "data", "push", folder, "--suite", suite, "--platform", "b", "--json")
    assert {name: entry["skipped"] for name, entry in again.items()} == {"b": 3}


def test_an_import_and_a_suite_make_the_same_dataset_of_the_same_file(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(5200)))
    suite = tmp_path / "suite.toml"
    generated = "{ grammar_seed = 7, train_rows = 64, evaluation_rows = 16, vocab_size = 300 }"
    suite.write_text(SUITE.format(root=tmp_path).replace(generated, f'{{ path = "{rows}" }}'))
    _, built, _ = answer_of(capsys, "data", "build", str(suite), "--out", str(tmp_path / "built"), "--json")
    out = str(tmp_path / "imported")
    _, imported, _ = answer_of(capsys, "data", "import", str(rows), "--name", "reviews", "--out", out, "--json")
    assert imported["reviews"]["manifest"] == built["reviews"]["manifest"]
    assert imported["reviews"]["train_rows"] + imported["reviews"]["evaluation_rows"] == 5200


def test_verify_names_the_file_that_was_changed_in_a_store(suite, tmp_path, capsys):
    folder = str(tmp_path / "built")
    main(["data", "build", suite, "--out", folder])
    main(["data", "push", f"{folder}/reviews", "--suite", suite])
    capsys.readouterr()
    shard = next((tmp_path / "b" / "reviews" / "train").glob("*.parquet"))
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    code, verified, errors = answer_of(capsys, "data", "verify", "reviews", "--suite", suite, "--json")
    assert code == 4
    assert verified["a"]["problems"] == []
    assert shard.name in verified["b"]["problems"][0]
    assert shard.name in errors


def test_verify_tells_platforms_that_hold_different_datasets(suite, tmp_path, capsys):
    for name, rows in (("a", 20), ("b", 21)):
        source = tmp_path / f"{name}.csv"
        source.write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(rows)))
        out = str(tmp_path / f"built-{name}")
        assert main(["data", "import", str(source), "--name", "reviews", "--out", out]) == 0
        assert main(["data", "push", out, "--to", f"file://{tmp_path}/{name}"]) == 0
    assert main(["data", "verify", "reviews", "--suite", suite]) == 4
    errors = capsys.readouterr().err
    assert "contain different datasets named 'reviews'" in errors
    assert "b: differs from a: 17 rows of train instead of 16\n" in errors
    assert "b: differs from a: 22 lines read instead of 21\n" in errors
    path = tmp_path / "b" / "reviews" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source": "\x1b[2J\n::error::x"}))
    assert main(["data", "verify", "reviews", "--suite", suite]) == 4
    errors = capsys.readouterr().err
    assert "made from" in errors
    assert "\x1b" not in errors
    assert "\n::" not in errors


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["build", "{suite}", "news", "--out", "x"], (2, "datasets: the dataset 'news' does not exist")),
        (["push", "{root}", "--suite", "{suite}"], (4, "contains no manifest.json")),
        (["push", "{root}"], (2, "use either --to URL or --suite SUITE")),
        (["push", "{root}", "--suite", "{suite}", "--platform", "c"], (2, "the platform 'c' does not exist")),
        (["verify"], (2, "name the dataset")),
        (["verify", "reviews", "--suite", "{suite}"], (3, "the folder does not exist (hint: mount it")),
        (["import", "x.csv", "--name", "A b", "--out", "{root}/y"], (2, "'A b' cannot name a dataset")),
        (["import", "x.csv", "--name", "x", "--out", "{root}/y", "--vocab-size", "3"], (2, "--vocab-size: 3 is less")),
        (["build", "{suite}", "--out", "{suite}"], (2, "suite.toml: --out: is not a folder")),
        (["import", "x.csv", "--name", "x", "--out", "{suite}"], (2, "suite.toml: --out: is not a folder")),
    ],
)
def test_what_is_wrong_is_one_line_with_its_exit_code(suite, tmp_path, capsys, argv, expected):
    code, message = expected
    assert main(["data", *(word.format(suite=suite, root=tmp_path) for word in argv)]) == code
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("out", "message"), [("taken", "taken: --out: is a folder"), ("suite.toml/x", "suite.toml: --out: is not a folder")]
)
def test_a_spec_that_cannot_be_written_leaves_nothing_behind(suite, tmp_path, capsys, out, message):
    (tmp_path / "taken").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["spec", suite, "tiny", "--out", str(tmp_path / out)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_that_may_not_be_read_are_wrong_usage(tmp_path, capsys, monkeypatch):
    source = tmp_path / "rows.csv"
    source.write_text("text,label\n")

    opened = Path.open

    def refuse(path, *args, **more):
        if path == source:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **more)

    # As root, no file's mode refuses anything.
    monkeypatch.setattr("pathlib.Path.open", refuse)
    assert main(["data", "import", str(source), "--name", "x", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"plumbline: {source}: Permission denied\n"
