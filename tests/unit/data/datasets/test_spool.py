"""Spooled rows, larger than their memory."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from plumbline.data.datasets.rows import Row
from plumbline.data.datasets.shards import Spool

_PEAK = """
import sys, tracemalloc
from pathlib import Path

from plumbline.data.datasets import build_dataset
from plumbline.schema.suite import DatasetSource

path = Path(sys.argv[1])
source = DatasetSource(path=str(path), train_rows=1 << 40, rows_per_shard=50, vocab_size=100)
build_dataset(source.replace(train_rows=8), "mine", "sequence-classification", path.parent / "before")
tracemalloc.start()
manifest = build_dataset(source, "mine", "sequence-classification", path.parent / "out")
rows = sum(shard.num_rows for shard in (*manifest.train, *manifest.evaluation))
print(rows, tracemalloc.get_traced_memory()[1])
"""
"""Prints the number of rows of an import and its peak of traced memory, in bytes."""
ROWS = [Row("plain", 0), Row("é“”\U0001f600\nnext line", 9_999), Row(" ", None), Row("x" * 100_000, 3)]


def test_rows_come_back_as_they_were_in_any_order_and_more_than_once(tmp_path):
    with Spool(tmp_path) as spool:
        first, second = spool.add(ROWS), spool.add(reversed(ROWS))
        assert list(first) == list(first) == ROWS
        assert list(second) == ROWS[::-1]
        assert list(first.ordered(np.array([2, 0, 3, 1]))[1:3]) == [ROWS[0], ROWS[3]]
        assert list(second.texts) == list(second.texts) == [row.text for row in ROWS[::-1]]
        assert len(spool.add([])) == 0
        # Without a name: nothing is left of it if the process is killed.
        assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_an_import_holds_a_few_rows_and_not_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for number in range(2000):
            file.write(json.dumps({"text": f"row {number} " + ("word" * 25 + " ") * 40, "label": number % 2}) + "\n")
    # Tracing counts all threads of a process, also those that other tests left: the import has its own interpreter.
    printed = subprocess.run(
        [sys.executable, "-c", _PEAK, path], capture_output=True, text=True, check=True, timeout=120
    )
    rows, peak = map(int, printed.stdout.split())
    assert rows == 2000
    assert peak < path.stat().st_size / 3
