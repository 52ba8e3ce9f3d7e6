"""A dataset of the Hugging Face hub by its name, from a hub over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq

from tests.unit.data.hub_server import serve_hub

TRAIN = [(f"a row of training, number {i}", i % 2) for i in range(40)]
TEST = [(f"a row of the test, number {i}", i % 2) for i in range(12)]


def csv_of(rows):
    return ("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows)).encode()


def import_from(endpoint, name, folder):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    out = str(folder / "out")
    return subprocess.run(
        [sys.executable, "-m", "plumbline", "data", "import", name, "--name", "mine", "--out", out, "--json"],
        env=environment | {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "NO_PROXY": "127.0.0.1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def rows_of(folder, shards):
    tables = [pq.read_table(folder / shard["key"], columns=["text", "label"]) for shard in shards]
    return sorted((row["text"], row["label"]) for table in tables for row in table.to_pylist())


def test_a_dataset_of_the_hub_comes_in_whole_with_its_own_splits(tmp_path):
    with serve_hub("acme/reviews", {"train.csv": csv_of(TRAIN), "test.csv": csv_of(TEST)}) as endpoint:
        done = import_from(endpoint, "acme/reviews", tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)["mine"]
    assert answer["source"] == "huggingface.co/datasets/acme/reviews"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert rows_of(tmp_path / "out", manifest["train"]) == sorted(TRAIN)
    assert rows_of(tmp_path / "out", manifest["evaluation"]) == sorted(TEST)


def test_a_name_that_the_hub_does_not_know_is_one_clear_line(tmp_path):
    with serve_hub("acme/reviews", {}) as endpoint:
        done = import_from(endpoint, "acme/unknown", tmp_path)
    assert done.returncode == 3
    lines = [line for line in done.stderr.splitlines() if line.startswith("plumbline:")]
    assert len(lines) == 1
    assert "acme/unknown: path: the Hugging Face hub did not give this dataset" in lines[0]
    assert "Traceback" not in done.stderr
