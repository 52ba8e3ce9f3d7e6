"""The most memory that `plumbline data import` takes, by the size of what it imports.

`python bench/staging/importing.py --out bench/results/staging-import.json`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CHILD = """
import sys
from plumbline.cli.main import main
code = main(["data", "import", sys.argv[1], "--name", "rows", "--out", sys.argv[2], "--vocab-size", "2048"])
sys.stderr.write(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
sys.exit(code)
"""
WORDS_PER_TEXT = 150
ROWS_PER_PIECE = 1000


def rows(size: int) -> Iterator[tuple[str, int]]:
    """Yield about `size` bytes of text in rows of 1 KB."""
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(30_000)]
    written = 0
    while written < size:
        text = " ".join(rng.choices(words, k=WORDS_PER_TEXT))
        written += len(text)
        yield text, written % 3


def write(path: Path, size: int) -> int:
    """Write the rows as a file of this kind; return their number."""
    schema = pa.schema([("text", pa.string()), ("label", pa.int64())])
    count = 0
    if path.suffix == ".parquet":
        texts, labels = zip(*rows(size), strict=True)
        table = pa.table({"text": texts, "label": labels}, schema=schema)
        pq.write_table(table, path, row_group_size=len(texts))
        return len(texts)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        if path.suffix == ".csv":
            writer.writerow(["text", "label"])
        for text, label in rows(size):
            count += 1
            if path.suffix == ".csv":
                writer.writerow([text, label])
            else:
                file.write(json.dumps({"text": text, "label": label}) + "\n")
    return count


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", nargs="*", type=int, default=[16, 64, 192])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result: list[dict[str, Any]] = []
    for kind in (".csv", ".jsonl", ".parquet"):
        for size in arguments.mib:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"rows{kind}"
                count = write(path, size << 20)
                begin = time.perf_counter()
                command = [sys.executable, "-c", CHILD, str(path), str(Path(folder) / "out")]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                result.append({
                    "kind": kind, "text_mib": size, "rows": count, "seconds": time.perf_counter() - begin,
                    "peak_mib": int(done.stderr.split()[-1]) / 1024, "load_average": os.getloadavg()[0],
                })  # fmt: skip
                print(json.dumps(result[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
