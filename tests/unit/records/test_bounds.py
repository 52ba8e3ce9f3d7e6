"""Small files with large contents, and endless lists, are refused before reading."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.night.central.outbox import read_untrusted, record_key
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.base import read_model
from plumbline.schema.errors import CorruptDataError, InvalidInputError
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.spec import RunSpec
from tests.contract.records import make_record
from tests.memory_store import MemoryStore
from tests.record_parts import record_parts
from tests.unit.judge.made_records import evaluation, whole
from tests.unit.records.test_parquet_pages import varint

ROWS = 2 * 8 + 64
"""What the spec of `make_record` reads at most: 2 steps of 8 rows, and 64 rows of evaluation."""


def with_rows(folder: Path, table: pa.Table) -> Path:
    """Return a record with this table as `rows.parquet`, with the right digest."""
    made = make_record(folder / "made", "r", "aws")
    pq.write_table(table, made / "rows.parquet", compression="zstd", use_dictionary=True)
    return with_digests(made)


def with_digests(made: Path, **changes: Any) -> Path:
    """Write the digests of a record's parts into it."""
    content = json.loads((made / RECORD_NAME).read_bytes())
    content |= changes | {"parts": [part.to_json() for part in record_parts(made)]}
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


def test_a_small_file_that_declares_millions_of_rows_costs_no_memory(tmp_path: Path) -> None:
    """Constant columns compress to almost nothing; read, they take gigabytes. The reader has one of address space."""
    made, path = with_rows(tmp_path, rows(1)), tmp_path / "made" / "rows.parquet"
    count = 3_000_000
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1 << 20, np.int32)), pa.array([0], pa.int64()))
    schema = pa.schema([("row_id", values.type), ("text", values.type), ("label", values.type)])
    with pq.ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        for _ in range(count >> 20):
            writer.write_batch(pa.record_batch([values, values, values], schema))
    with_digests(made)
    assert path.stat().st_size < 64 << 10
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from plumbline.schema.errors import CorruptDataError\n"
        "from plumbline.records import load_record\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try:\n    load_record(Path(sys.argv[1])).rows\nexcept CorruptDataError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(made)], capture_output=True, text=True, timeout=300, check=False
    )
    assert "rows, the spec reads at most" in done.stdout, done.stderr[-500:]


def inflated(data: bytes, column: Any, unpacked: int) -> bytes:
    """Return a file of the same length, with a dictionary page of `column` that unpacks to zeros of this size."""
    start = at = column.dictionary_page_offset
    fields = []
    for _ in range(3):
        assert data[at] == 0x15
        end = next(place for place in range(at + 1, at + 10) if data[place] < 0x80) + 1
        fields.append(data[at + 1 : end])
        at = end
    packed = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(fields[2])) >> 1
    end = column.data_page_offset - packed
    size = varint(2 * unpacked)
    zeros = pa.Codec("zstd").compress(bytes(unpacked), asbytes=True)
    room = packed - (len(size) - len(fields[1]))
    # A frame that readers skip fills the room that is left.
    padding = room - len(zeros) - 8
    assert padding >= 0
    body = zeros + (0x184D2A50).to_bytes(4, "little") + padding.to_bytes(4, "little") + bytes(padding)
    head = b"\x15" + fields[0] + b"\x15" + size + b"\x15" + varint(2 * room)
    page = head + data[at:end] + body
    return data[:start] + page + data[start + len(page) :]


def test_a_page_that_unpacks_to_megabytes_is_refused_whatever_the_footer_says(tmp_path: Path) -> None:
    """A 19 KB file of one row took 1086 MiB: the footer declares how much a column unpacks to, the page decides."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, 2**63, ROWS, np.uint64)
    made = with_rows(tmp_path, pa.table({"row_id": np.arange(ROWS), "text": values, "label": values}))
    path = made / "rows.parquet"
    assert len(load_record(made).rows["text"]) == ROWS
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    path.write_bytes(inflated(path.read_bytes(), column, 8 << 20))
    with_digests(made)
    with pytest.raises(CorruptDataError, match=r"unpacks to 83[0-9]{5} bytes for 80 rows"):
        _ = load_record(made).rows


@pytest.mark.parametrize("groups", [1, 2])
def test_pages_may_unpack_to_64_bytes_a_row_and_64_kib_a_group(tmp_path: Path, groups: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**63, ROWS, np.uint64)
    made = with_rows(tmp_path, pa.table({"row_id": np.arange(ROWS), "text": values, "label": values}))
    loaded, path = load_record(made), made / "rows.parquet"
    table, most = pq.read_table(path), ROWS * 64 + groups * 65536
    pq.write_table(table, path, compression="zstd", row_group_size=ROWS // groups)
    data, column = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0).column(1)

    def refusal(unpacked: int) -> str:
        path.write_bytes(inflated(data, column, unpacked))
        with pytest.raises(CorruptDataError) as caught:
            _ = LoadedRecord(loaded.record, made).rows
        return str(caught.value)

    found = re.search("unpacks to ([0-9]+) bytes", refusal(1 << 20))
    assert found is not None
    others = int(found[1]) - (1 << 20)
    assert f"unpacks to {most + 1} bytes" in refusal(most + 1 - others)
    path.write_bytes(inflated(data, column, most - others))
    assert len(LoadedRecord(loaded.record, made).rows["row_id"]) == ROWS


@pytest.mark.parametrize(("groups", "refused"), [(1024, False), (1025, True)])
def test_a_file_of_rows_has_at_most_1024_groups(tmp_path: Path, groups: int, *, refused: bool) -> None:
    made = make_record(tmp_path / "made", "r", "aws")
    content = json.loads((made / RECORD_NAME).read_bytes())
    content["spec"]["probe"]["evaluation_rows"] = 10_000
    spec = RunRecord.model_validate(content | {"spec_sha256": RunSpec.model_validate(content["spec"]).digest}).spec
    pq.write_table(rows(groups), made / "rows.parquet", row_group_size=1, write_statistics=False)
    loaded = load_record(with_digests(made, spec=spec.to_json(), spec_sha256=spec.digest))
    if refused:
        with pytest.raises(CorruptDataError, match="its row groups do not match its number of rows"):
            _ = loaded.rows
    else:
        assert len(loaded.rows["row_id"]) == groups


def test_no_byte_of_a_file_of_rows_does_anything_but_be_read_or_refused(tmp_path: Path) -> None:
    made = with_rows(tmp_path, rows(ROWS))
    loaded, path = load_record(made), made / "rows.parquet"
    data, generator = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in generator.integers(0, len(data), 400):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << generator.integers(8)]) + data[place + 1 :])
        try:
            assert len(LoadedRecord(loaded.record, made).rows["row_id"]) <= ROWS
        except CorruptDataError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "table",
    [
        pa.table({f"c{number}": [1] for number in range(100)}),
        pa.table({"row_id": [[1, 2]], "text": pa.array([1], pa.uint64()), "label": pa.array([1], pa.uint64())}),
        rows(2).append_column("more", pa.array([1, 2])),
        rows(2).drop_columns("label"),
        pa.table({"row_id": [1.0], "text": pa.array([1], pa.uint64()), "label": pa.array([1], pa.uint64())}),
    ],
)
def test_other_columns_than_the_three_are_not_read(tmp_path: Path, table: pa.Table) -> None:
    with pytest.raises(CorruptDataError, match="its columns differ"):
        _ = load_record(with_rows(tmp_path, table)).rows


def test_a_part_larger_than_its_spec_explains_is_not_read(tmp_path: Path) -> None:
    made = make_record(tmp_path / "made", "r", "aws")
    for name in ("batches", "sketches", "state", "evaluation", "answers", "capture"):
        (made / f"{name}.safetensors").write_bytes(bytes(4 << 20))
    loaded = load_record(with_digests(made))
    for name in ("batches", "sketches", "state", "evaluation", "answers"):
        with pytest.raises(CorruptDataError, match=r"bytes, more than the [0-9]+ that the spec explains"):
            getattr(loaded, name)
    (made / "rows.parquet").write_bytes(bytes(1 << 20))
    with pytest.raises(CorruptDataError, match="more than the 70656 that the spec explains"):
        _ = load_record(with_digests(made)).rows


def test_taps_after_the_last_step_are_refused(tmp_path: Path) -> None:
    """The limit of a tap grows with its step, beyond any number."""
    probe = whole().record.evidence.probe
    assert probe is not None
    made = make_record(tmp_path / "made", "r", "aws")
    for changes in ({"taps": [{**tap.to_json(), "step": 900} for tap in probe.taps]}, {"evaluation": evaluation(900)}):
        evidence = {"probe": probe.to_json() | changes}
        with pytest.raises(InvalidInputError, match="taps or an evaluation after its 6 steps"):
            load_record(with_digests(made, evidence=evidence))


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
    store = MemoryStore()
    store.create(record_key("r"), json.dumps(content).encode())
    with pytest.raises(InvalidInputError, match="together"):
        read_untrusted(store, "r")
