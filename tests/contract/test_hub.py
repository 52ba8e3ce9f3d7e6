"""Datasets of the Hugging Face Hub by name, over HTTP."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from plumbline.data.datasets import hub
from plumbline.schema.errors import UnavailableError
from plumbline.schema.suite import DatasetSource
from tests.commands import run, run_plumbline
from tests.contract.hub_server import serve_hub

COMMIT = "a" * 40

TRAIN = [(f"a row of training, number {i}", i % 2) for i in range(40)]
TEST = [(f"a row of the test, number {i}", i % 2) for i in range(12)]


def csv_of(rows):
    return ("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows)).encode()


def with_hub(endpoint, home):
    """Return the variables of a program that finds this Hub."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return kept | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}


def import_from(endpoint, name, folder, *options, code=0):
    given = ("data", "import", name, "--name", "mine", "--out", folder / "out", "--json", *options)
    return run_plumbline(*given, env=with_hub(endpoint, folder / "home"), code=code)


def the_line(done):
    """Return the only error line of a refusing command."""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def rows_of(folder, shards):
    tables = [pq.read_table(folder / shard["key"], columns=["text", "label"]) for shard in shards]
    return sorted((row["text"], row["label"]) for table in tables for row in table.to_pylist())


def test_a_dataset_of_the_hub_comes_in_whole_with_its_own_splits(tmp_path):
    with serve_hub("acme/reviews", {"train.csv": csv_of(TRAIN), "test.csv": csv_of(TEST)}) as endpoint:
        done = import_from(endpoint, "acme/reviews", tmp_path)
    answer = json.loads(done.stdout)["mine"]
    assert answer["source"] == f"huggingface.co/datasets/acme/reviews@{COMMIT}"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert rows_of(tmp_path / "out", manifest["train"]) == sorted(TRAIN)
    assert rows_of(tmp_path / "out", manifest["evaluation"]) == sorted(TEST)


def test_a_name_that_the_hub_does_not_know_is_one_clear_line(tmp_path):
    with serve_hub("acme/reviews", {}) as endpoint:
        done = import_from(endpoint, "acme/unknown", tmp_path, code=2)
    assert "acme/unknown: path: the repository does not exist on the Hugging Face Hub" in the_line(done)


README = """---
configs:
- config_name: short
  data_files:
  - {split: train, path: short/train.csv}
  - {split: test, path: short/hidden.csv}
- config_name: long
  data_files:
  - {split: train, path: long/train.csv}
  - {split: extra, path: long/extra.csv}
dataset_info:
- config_name: long
  features:
  - {name: text, dtype: string}
  - name: label
    dtype:
      class_label:
        names: {'0': worse, '1': better, '2': same}
---
"""
CONFIGS = {
    "README.md": README.encode(),
    "short/train.csv": csv_of(TRAIN),
    "short/hidden.csv": csv_of([(text, -1) for text, _ in TEST]),
    "long/train.csv": csv_of(TRAIN),
    "long/extra.csv": csv_of(TEST),
}


@pytest.mark.long
def test_configuration_splits_and_revision_are_chosen_and_classes_keep_their_own_names(tmp_path):
    with serve_hub("acme/reviews", CONFIGS) as endpoint:
        chosen = ("--config", "long", "--split", "train", "--evaluation-split", "extra", "--revision", "v1")
        done = import_from(endpoint, "acme/reviews", tmp_path, *chosen)
    answer = json.loads(done.stdout)["mine"]
    assert answer["source"] == f"huggingface.co/datasets/acme/reviews:long@{COMMIT}"
    assert answer["classes"] == {"worse": [20, 6], "better": [20, 6], "same": [0, 0]}
    assert answer["notes"][0] == "no row of the train split has the class same"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert rows_of(tmp_path / "out", manifest["evaluation"]) == sorted(TEST)


@pytest.mark.long
def test_a_split_with_hidden_labels_evaluates_nothing(tmp_path):
    with serve_hub("acme/reviews", CONFIGS) as endpoint:
        done = import_from(endpoint, "acme/reviews:short", tmp_path)
    answer = json.loads(done.stdout)["mine"]
    assert (answer["train_rows"], answer["evaluation_rows"]) == (32, 8)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "acme/reviews: config: has several configurations (hint: one of short, long)"),
        (("--config", "lnog"), "the configuration 'lnog' does not exist (hint: did you mean `long`?)"),
        (
            ("--config", "long", "--split", "trian"),
            "split: the split 'trian' does not exist (hint: did you mean `train`?)",
        ),
        (("--revision", "v2"), "acme/reviews: revision: the revision does not exist"),
    ],
)
def test_what_the_dataset_does_not_have_is_one_line_with_the_choices(tmp_path, options, message):
    with serve_hub("acme/reviews", CONFIGS) as endpoint:
        done = import_from(endpoint, "acme/reviews", tmp_path, *options, code=2)
    assert message in the_line(done)


@pytest.mark.long
def test_a_hub_that_never_answers_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = import_from(f"http://127.0.0.1:{silent.getsockname()[1]}", "acme/reviews", tmp_path, code=3)
    assert "acme/reviews: path: the Hugging Face Hub cannot be reached" in the_line(done)


@pytest.mark.first(1)
@pytest.mark.parametrize("answers", [True, False], ids=["silent", "closed"])
def test_a_host_of_files_that_cannot_be_reached_is_one_line(tmp_path, answers):
    """The Hub redirects requests of files to other hosts, which a company's firewall may block."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"http://127.0.0.1:{silent.getsockname()[1] if answers else 9}"
        with serve_hub("acme/reviews", {"train.csv": csv_of(TRAIN)}, files_host=host) as endpoint:
            done = import_from(endpoint, "acme/reviews", tmp_path, code=3)
    assert "acme/reviews: path: the files on the Hugging Face Hub cannot be reached" in the_line(done)


def test_a_question_to_the_hub_is_given_up_whatever_it_waits_for():
    end = threading.Event()
    try:
        with pytest.raises(UnavailableError, match="cannot be reached"):
            hub.ask_hub(end.wait, "acme/reviews", time.monotonic() + 0.05)
    finally:
        end.set()


def test_the_repository_and_its_files_share_one_time_limit(monkeypatch):
    """A Hub that takes long for the first request leaves the second one only the rest."""
    now, waits = [100.0], []

    class SlowThread(threading.Thread):
        def join(self, timeout=None):
            super().join()
            waits.append(timeout)
            now[0] += 2.0

    def describe(*_args, **_options):
        return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename="train.csv")])

    def locate(url, **_options):
        return SimpleNamespace(location=url)

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", describe)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", locate)
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: now[0]), raising=False)
    monkeypatch.setattr(hub, "threading", SimpleNamespace(Thread=SlowThread))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert hub._commit(DatasetSource(path="acme/reviews")) == COMMIT
    assert waits[0] <= 4.0
    assert waits[1] == waits[0] - 2.0


IMPORT = """
import sys
from plumbline.cli.main import main
code = main(["data", "import", "acme/reviews", "--name", "mine", "--out", sys.argv[1]])
print(code, sorted({"datasets", "pandas", "torch", "transformers"} & set(sys.modules)))
"""


def test_an_unreachable_hub_is_reported_before_large_libraries_are_imported(tmp_path):
    done = run(sys.executable, "-c", IMPORT, tmp_path / "out", env=with_hub("http://127.0.0.1:9", tmp_path))
    assert done.stdout.strip() == "3 []"
    assert "the Hugging Face Hub cannot be reached" in the_line(done)


FETCH = """
import sys
from plumbline.data.datasets.spec import checkpoint_folder
from plumbline.schema.errors import PlumblineError
try:
    folder = checkpoint_folder(sys.argv[1], {"tiny": None})
    print(*sorted(path.name for path in folder.iterdir()), (folder / "model.safetensors").read_bytes().decode())
except PlumblineError as error:
    print(error)
"""
MODEL = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights", "flax_model.msgpack": b"x"}


def fetch(endpoint, folder, model):
    return run(sys.executable, "-c", FETCH, model, env=with_hub(endpoint, folder)).stdout.strip()


@pytest.mark.long
def test_a_model_of_the_hub_comes_by_name_and_revision_and_is_found_again_without_it(tmp_path):
    with serve_hub("acme/bert", MODEL, "models") as endpoint:
        first = fetch(endpoint, tmp_path, f"acme/bert@{COMMIT}")
        assert "the revision does not exist" in fetch(endpoint, tmp_path, "acme/bert@v9")
        assert "the repository does not exist" in fetch(endpoint, tmp_path, "acme/unknown@main")
    assert first == "config.json model.safetensors tokenizer.json weights"
    assert fetch("http://127.0.0.1:9", tmp_path, f"acme/bert@{COMMIT}") == first
    with serve_hub("acme/bert", MODEL, "models", files_host="http://127.0.0.1:9") as endpoint:
        assert "acme/bert@v1: model: the files on the Hugging Face Hub cannot be reached" in fetch(
            endpoint, tmp_path / "new", "acme/bert@v1"
        )
    assert "acme/bert@v1: model: the Hugging Face Hub cannot be reached" in fetch(
        "http://127.0.0.1:9", tmp_path, "acme/bert@v1"
    )
