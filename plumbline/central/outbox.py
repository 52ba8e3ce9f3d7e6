"""Records in an outbox: complete or absent, as `record.json` comes last."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.records.part_sizes import check_parts
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import (
    MAX_RECORD_BYTES,
    RECORD_NAME,
    RunRecord,
    check_content,
    parse_record,
    read_record,
)
from plumbline.staging.part import disk_errors
from plumbline.stores.protocol import Store
from plumbline.stores.retry import RetryPolicy
from plumbline.stores.writing import ensure_object, read_bytes

RECORDS = "records"
_UPLOAD_SECONDS = (60.0, 600.0)
_BUFFER_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class ForeignRecordError(InvalidInputError):
    """Error: the record has a different id."""


def record_key(record_id: str, name: str = RECORD_NAME) -> str:
    """Return the key of a record's file in an outbox."""
    if _NAME.fullmatch(record_id) is None:
        raise InvalidInputError(f"{record_id[:80]!r} is not a record's id", key="record_id")
    return f"{RECORDS}/{record_id}/{name}"


def upload_policy(training_seconds: float) -> RetryPolicy:
    """Return the retry policy of a record's upload: for as long as its training took, within one to ten minutes.

    A training that failed at once, as its store is away, is repeated sooner than the store may come back.
    """
    least, most = _UPLOAD_SECONDS
    return RetryPolicy(attempts=100, deadline_seconds=min(most, max(least, training_seconds)))


def publish_record(store: Store, folder: Path) -> None:
    """Write the record in `folder` to an outbox: parts first, `record.json` last. Idempotent.

    Raises `InvalidInputError` if a different record of the same id exists: records are never replaced.
    """
    record = read_record(folder)
    for part in record.parts:
        ensure_object(store, record_key(record.record_id, part.key), folder / part.key, sha256=part.sha256)
    ensure_object(store, record_key(record.record_id), (folder / RECORD_NAME).read_bytes())


def fetch_record(store: Store, record_id: str, into: Path) -> Path:
    """Download a record below `into`, with each part checked against its digest."""
    data = read_bytes(store, record_key(record_id), max_bytes=MAX_RECORD_BYTES)
    record = checked_record(data, record_id, f"{store.url}/{record_key(record_id)}")
    return receive(store, record, data, into, lambda part: record_key(record_id, part.key))


def checked_record(data: bytes, record_id: str, where: str) -> RunRecord:
    """Parse an untrusted record; check its id, its content, and the names and sizes of its parts."""
    record = parse_record(data, where=where)
    if record.record_id != record_id:
        raise ForeignRecordError(f"is the record {record.record_id!r}", where=where, key="record_id")
    check_content(record, where)
    check_parts(record, where)
    return record


def receive(store: Store, record: RunRecord, data: bytes, into: Path, key_of: Callable[[DataFile], str]) -> Path:
    """Download a record's parts, and rename to `into/ID` once all are verified."""
    final = into / record.record_id
    if _is_here(final, data):
        return final
    with disk_errors(into):
        into.mkdir(parents=True, exist_ok=True)
    temporary = into / f".{record.record_id}.{secrets.token_hex(4)}.part"
    try:
        with disk_errors(into):
            temporary.mkdir()
        for part in record.parts:
            download(store, key_of(part), part, temporary / part.key)
        with disk_errors(into):
            (temporary / RECORD_NAME).write_bytes(data)
            _give_name(temporary, final, data)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _give_name(temporary: Path, final: Path, data: bytes) -> None:
    """Rename the folder; replace an incomplete or damaged folder of that name."""
    shutil.rmtree(final, ignore_errors=True)
    try:
        temporary.rename(final)
    except OSError:
        # A concurrent download was faster: accept its folder if equal.
        if not _is_here(final, data):
            raise


def _is_here(folder: Path, data: bytes) -> bool:
    try:
        read_record(folder)
    except InvalidInputError:
        return False
    return (folder / RECORD_NAME).read_bytes() == data


def download(store: Store, key: str, part: DataFile, path: Path) -> None:
    """Download a new file; raise `CorruptDataError` if size or digest differ."""
    hasher, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with store.open(key) as reader, path.open("xb") as file:
            if reader.info.size != part.size:
                text = f"is {reader.info.size} bytes long, the record says {part.size}"
                raise CorruptDataError(text, where=store.url, key=key)
            while size := reader.readinto(buffer):
                hasher.update(buffer[:size])
                file.write(buffer[:size])
                total += size
            file.flush()
            os.fsync(file.fileno())
    if total != part.size or hasher.hexdigest() != part.sha256:
        raise CorruptDataError("does not match the digest in its record", where=store.url, key=key)
