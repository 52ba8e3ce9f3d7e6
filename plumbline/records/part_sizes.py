"""Names and maximum sizes of a record's files, including Parquet pages. Pure.

A file's footer declares how much a column unpacks to, and nothing makes it true: what the reader allocates is the size
in the header of each page (`PageHeader` of the Parquet format, in Thrift's compact protocol).
"""

from __future__ import annotations

from plumbline.schema.captured import CapturedSpec, captured
from plumbline.schema.errors import CorruptDataError
from plumbline.schema.evidence import SKETCH_SIZE
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import RunSpec

MAX_ROW_BYTES = 64
"""Maximum bytes of one row of three integers, packed or not, in the least favourable encoding."""
_MAX_ROWS = 64_000_000
_MAX_CAPTURE_BYTES = 4 << 30
_NUMBER = 8
_STATE_BYTES = 1 << 16
"""Maximum bytes of one step's generators; those of Python, numpy and torch have 10,000."""
_OVERHEAD = 1 << 20
"""For headers, and for a faulty run that evaluates more rows than the spec asks for."""
_FOOTER = 1 << 16
_UNFINISHED_BYTES = 64 << 20
"""For a failed training: its evidence may lack taps whose sketches are there."""
PART_FILES = {
    "rows": "rows.parquet",
    **{name: f"{name}.safetensors" for name in ("batches", "sketches", "state", "evaluation", "answers", "capture")},
    "output": "output.txt",
}
"""File of each part that a training writes."""


def check_parts(record: RunRecord, where: str) -> None:
    """Raise `CorruptDataError` for files that the spec does not explain.

    Called before any part is downloaded.
    """
    names = {file: name for name, file in PART_FILES.items()}
    has_capture = record.experiment is not None and bool(record.experiment.captures)
    for part in record.parts:
        name = names.get(part.key)
        is_odd = (name == "capture" and not has_capture) or (name == "output" and not captured(record.spec))
        if name is None or is_odd:
            raise CorruptDataError(f"{part.key[:80]!r} was not ordered", where=where, key="parts")
        most = max_part_bytes(record, name) + (0 if record.exit.status == "completed" else _UNFINISHED_BYTES)
        if part.size > most:
            text = f"{part.key} has {part.size} bytes, more than the {most} that the spec explains"
            raise CorruptDataError(text, where=where, key="parts")


def max_rows(spec: RunSpec | CapturedSpec) -> int:
    """Return the maximum number of distinct rows that a training reads; of a captured one no row is kept."""
    if isinstance(spec, CapturedSpec):
        return 0
    steps = max((part.steps for part in (spec.probe, spec.speed, spec.learn) if part), default=0)
    return min(steps * spec.batch_size + _evaluated(spec), _MAX_ROWS)


def max_part_bytes(record: RunRecord, name: str) -> int:
    """Return the maximum size of the file `name` in this record."""
    spec = record.spec
    taps = len(record.evidence.probe.taps) if record.evidence.probe else 0
    if name == "capture":
        return _MAX_CAPTURE_BYTES if record.experiment and record.experiment.captures else _OVERHEAD
    if isinstance(spec, CapturedSpec):
        return (taps * SKETCH_SIZE * _NUMBER if name == "sketches" else 0) + _OVERHEAD
    if name == "rows":
        return MAX_ROW_BYTES * max_rows(spec) + _FOOTER
    steps, rows = _steps(record), _evaluated(spec)
    length = max(spec.data.sequence_length, spec.model.max_position_embeddings)
    sizes = {
        # Twice, as a faulty run may repeat rows: the judge names the cause.
        "batches": 2 * steps * spec.batch_size * (1 + 4 * length) * _NUMBER,
        "sketches": taps * SKETCH_SIZE * _NUMBER,
        "state": (steps + 1) * _STATE_BYTES,
        "evaluation": rows * (2 + (spec.model.num_labels or 1)) * _NUMBER,
        "answers": rows * 2 * _NUMBER,
    }
    return sizes[name] + _OVERHEAD


def _steps(record: RunRecord) -> int:
    if record.experiment:
        return record.experiment.steps
    return record.spec.probe.steps if record.spec.probe else 0


def _evaluated(spec: RunSpec) -> int:
    return max((part.evaluation_rows for part in (spec.probe, spec.learn) if part), default=0)


_SIZE_FIELD = 0x15
"""The field after the last one, an i32: type, unpacked size and packed size come first, in this order."""
_STOP, _BYTE, _DOUBLE, _BINARY, _STRUCT = 0, 3, 7, 8, 12
_BOOLEANS, _INTEGERS = (1, 2), (4, 5, 6)
_MAX_DEPTH = 4
_MAX_VARINT_BYTES = 10


def unpacked_bytes(data: bytes, start: int, end: int) -> int:
    """Return the unpacked size of all Parquet pages in `data[start:end]`. Raise `ValueError` if malformed."""
    if not 0 <= start <= end <= len(data):
        raise ValueError("a column is outside of the file")
    total, at = 0, start
    while at < end:
        _, at = _size(data, at)
        unpacked, at = _size(data, at)
        packed, at = _size(data, at)
        at = _after_struct(data, at) + packed
        total += unpacked
    if at != end:
        raise ValueError("a page is longer than its column")
    return total


def _size(data: bytes, at: int) -> tuple[int, int]:
    if data[at : at + 1] != bytes([_SIZE_FIELD]):
        raise ValueError("a page's header does not start with its sizes")
    value, at = _varint(data, at + 1)
    if value & 1:
        raise ValueError("a page has a negative size")
    return value >> 1, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a page's header is cut off")


def _after_struct(data: bytes, at: int, depth: int = 0) -> int:
    """Return the offset after the remaining fields of a Thrift struct."""
    while at < len(data) and depth < _MAX_DEPTH:
        kind, step = data[at] & 0x0F, data[at] >> 4
        at += 1
        if kind == _STOP:
            return at
        if step == 0:
            break  # the long form could repeat a size
        at = _after_value(data, at, kind, depth)
    raise ValueError("a page's header is malformed")


def _after_value(data: bytes, at: int, kind: int, depth: int) -> int:
    if kind in _BOOLEANS:
        return at
    if kind in _INTEGERS:
        return _varint(data, at)[1]
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _after_struct(data, at, depth + 1)
    widths = {_BYTE: 1, _DOUBLE: 8}
    if kind not in widths:
        raise ValueError("a page's header has a field of an unknown type")
    return at + widths[kind]
