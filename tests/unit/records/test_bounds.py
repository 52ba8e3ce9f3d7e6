"""Small files with large contents, and endless lists, are refused before reading."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.central.outbox import checked_record
from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.records import load_record
from plumbline.schema.base import read_model
from plumbline.schema.record import RECORD_NAME, RunRecord
from tests.contract.records import make_record
from tests.record_parts import record_parts

ROWS = 2 * 8 + 64
"""What the spec of `make_record` reads at most: 2 steps of 8 rows, and 64 rows of evaluation."""


def with_rows(folder: Path, table: pa.Table) -> Path:
    """Return a record with this table as `rows.parquet`, with the right digest."""
    made = make_record(folder / "made", "r", "aws")
    pq.write_table(table, made / "rows.parquet", compression="zstd", use_dictionary=True)
    content = json.loads((made / RECORD_NAME).read_bytes())
    content["parts"] = [part.to_json() for part in record_parts(made)]
    (made / RECORD_NAME).write_text(json.dumps(content), encoding="utf-8")
    return made


def rows(count: int) -> pa.Table:
    ids, values = np.arange(count, dtype=np.int64), np.zeros(count, np.uint64)
    return pa.table({"row_id": ids, "text": values, "label": values})


def test_as_many_rows_as_the_spec_reads_are_read(tmp_path: Path) -> None:
    assert len(load_record(with_rows(tmp_path, rows(ROWS))).rows["row_id"]) == ROWS


def test_one_row_more_than_the_spec_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match=f"declares {ROWS + 1} rows, the spec reads at most {ROWS}"):
        _ = load_record(with_rows(tmp_path, rows(ROWS + 1))).rows


def test_a_small_file_that_declares_a_hundred_million_rows_costs_no_memory(tmp_path: Path) -> None:
    """Constant columns compress to almost nothing; read, they take gigabytes. The reader has one of address space."""
    made, path = with_rows(tmp_path, rows(1)), tmp_path / "made" / "rows.parquet"
    count = 100_000_000
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1 << 20, np.int32)), pa.array([0], pa.int64()))
    schema = pa.schema([("row_id", values.type), ("text", values.type), ("label", values.type)])
    with pq.ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        for _ in range(count >> 20):
            writer.write_batch(pa.record_batch([values, values, values], schema))
    content = json.loads((made / RECORD_NAME).read_bytes())
    content["parts"] = [part.to_json() for part in record_parts(made)]
    (made / RECORD_NAME).write_text(json.dumps(content), encoding="utf-8")
    assert path.stat().st_size < 10 << 20
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from plumbline.errors import CorruptDataError\n"
        "from plumbline.records import load_record\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try:\n    load_record(Path(sys.argv[1])).rows\nexcept CorruptDataError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(made)], capture_output=True, text=True, timeout=30, check=False
    )
    assert "rows, the spec reads at most" in done.stdout, done.stderr[-500:]


def content_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((make_record(folder / "made", "r", "aws") / RECORD_NAME).read_bytes())
    return content


def test_a_record_with_endless_timings_is_refused(tmp_path: Path) -> None:
    content = content_of(tmp_path)
    content["timings"] = {f"t{number}": 1.0 for number in range(1000)}
    assert len(read_model(RunRecord, json.dumps(content).encode()).timings) == 1000
    content["timings"]["one more"] = 1.0
    with pytest.raises(InvalidInputError, match="timings"):
        read_model(RunRecord, json.dumps(content).encode())


@pytest.mark.parametrize(
    "path", ["fingerprint.packages", "fingerprint.environment", "fingerprint.numerics", "fingerprint.topology"]
)
def test_a_fingerprint_with_endless_entries_is_refused(tmp_path: Path, path: str) -> None:
    content = content_of(tmp_path)
    part, key = path.split(".")
    content[part][key] = {f"p{number}": "1" for number in range(10_001)}
    with pytest.raises(InvalidInputError, match=key):
        read_model(RunRecord, json.dumps(content).encode())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('"record_id":"r"', '"record_id":"last-night","record_id":"r"'),
        ('"hostname":"h"', '"hostname":"h","hostname":"other"'),
        ('"hostname":"h"', '"hostname":"h","\\u0068ostname":"other"'),
        ('"status":"completed"', '"status":"failed","status":"completed"'),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, text: str, key: str) -> None:
    data = json.dumps(content_of(tmp_path), separators=(",", ":"))
    assert text in data
    with pytest.raises(InvalidInputError, match="given twice"):
        read_model(RunRecord, data.replace(text, key).encode())


def test_a_record_nested_without_end_is_refused(tmp_path: Path) -> None:
    data = json.dumps(content_of(tmp_path)).replace('"numerics": {}', '"numerics": ' + "[" * 90_000 + "]" * 90_000)
    with pytest.raises(InvalidInputError):
        read_model(RunRecord, data.encode())


def test_a_record_whose_parts_would_fill_the_controllers_disk_is_refused(tmp_path: Path) -> None:
    content = content_of(tmp_path)
    part = {"size": 6 << 30, "sha256": "a" * 64}
    content["parts"] = [{**part, "key": f"p{number}.safetensors"} for number in range(3)]
    with pytest.raises(InvalidInputError, match="together"):
        checked_record(json.dumps(content).encode(), "r", "x")
