"""Records and checkpoints in an outbox, each complete or absent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from plumbline.data.staging.part import disk_errors
from plumbline.data.stores.protocol import ObjectMissingError, Store, ensure_object, read_bytes, read_object
from plumbline.data.stores.retry import RetryPolicy
from plumbline.records import LoadedRecord
from plumbline.records.part_sizes import check_parts
from plumbline.schema.base import Model, Sha256, read_model
from plumbline.schema.digest import canonical_json, digest_bytes, digest_file
from plumbline.schema.errors import CorruptDataError, InvalidInputError, PlumblineError
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import (
    MAX_RECORD_BYTES,
    RECORD_NAME,
    RunRecord,
    check_content,
    check_part,
    parse_record,
    read_record,
)

RECORDS = "records"
_UPLOAD_SECONDS = (60.0, 600.0)
_BUFFER_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

_STATE, _TENSORS = "state.json", "tensors.safetensors"
_MAX_BYTES = 4 << 30
_MAX_STATE_BYTES = 64 << 20
_POLL_SECONDS = 5.0
_LEAST_SECONDS = 30.0
"""Minimum seconds between uploads: a checkpoint may be large, and training faster than the link."""


class ForeignRecordError(InvalidInputError):
    """Error: the record has a different id."""


def record_key(record_id: str, name: str = RECORD_NAME) -> str:
    """Return the outbox key of a record's file."""
    if _NAME.fullmatch(record_id) is None:
        raise InvalidInputError(f"{record_id[:80]!r} is not a record's id", key="record_id")
    return f"{RECORDS}/{record_id}/{name}"


def upload_policy(training_seconds: float) -> RetryPolicy:
    """Return a record upload's retry policy, by its training's duration.

    A training that failed at once, as its store is away, is repeated sooner than the store may come back.
    """
    least, most = _UPLOAD_SECONDS
    return RetryPolicy(attempts=100, deadline_seconds=min(most, max(least, training_seconds)))


def publish_record(store: Store, folder: Path) -> None:
    """Upload the record in `folder` to an outbox, `record.json` last. Idempotent.

    Raises `InvalidInputError` if a different record of the same id exists: records are never replaced.
    """
    record = read_record(folder)
    for part in record.parts:
        ensure_object(store, record_key(record.record_id, part.key), folder / part.key, sha256=part.sha256)
    ensure_object(store, record_key(record.record_id), (folder / RECORD_NAME).read_bytes())


def fetch_record(store: Store, record_id: str, into: Path) -> LoadedRecord:
    """Download a record below `into`, verifying each file's digest."""
    record, data = read_untrusted(store, record_id)
    return receive(store, record, data, into, lambda part: record_key(record_id, part.key))


def read_untrusted(store: Store, record_id: str) -> tuple[RunRecord, bytes]:
    """Read an untrusted record, checking size, id, content and file names."""
    key = record_key(record_id)
    where = f"{store.url}/{key}"
    data = read_bytes(store, key, max_bytes=MAX_RECORD_BYTES)
    record = parse_record(data, where=where)
    if record.record_id != record_id:
        raise ForeignRecordError(f"is the record {record.record_id!r}", where=where, key="record_id")
    check_content(record, where)
    check_parts(record, where)
    return record, data


def receive(
    store: Store, record: RunRecord, data: bytes, into: Path, key_of: Callable[[DataFile], str]
) -> LoadedRecord:
    """Download a parsed record's files, and rename to `into/ID` once verified."""
    loaded = LoadedRecord(record, into / record.record_id, sha256=digest_bytes(data))
    if _is_here(loaded):
        return loaded
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
            _give_name(temporary, loaded)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return loaded


def _give_name(temporary: Path, loaded: LoadedRecord) -> None:
    """Rename the folder, replacing an incomplete or damaged one."""
    shutil.rmtree(loaded.folder, ignore_errors=True)
    try:
        temporary.rename(loaded.folder)
    except OSError:
        # A concurrent download was faster: accept its folder if equal.
        if not _is_here(loaded):
            raise


def _is_here(loaded: LoadedRecord) -> bool:
    try:
        for part in loaded.record.parts:
            check_part(loaded.folder, part)
        return digest_file(loaded.folder / RECORD_NAME) == loaded.sha256
    except (InvalidInputError, OSError):
        return False


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


class _Pointer(Model):
    schema_version: Literal[1] = 1
    slot: Literal["a", "b"]
    size: int = Field(ge=0, le=_MAX_BYTES)
    tensors_sha256: Sha256
    state: str
    """The trainer's `state.json`."""


class CheckpointExchange:
    """Synchronisation of a training's checkpoints between disk and outbox.

    From it an attempt on a new machine resumes. Two slots alternate for the tensors, and a pointer with the trainer's
    own state names the complete slot. Nothing is deleted, as some stores cannot delete: a completed attempt empties
    both slots.
    """

    def __init__(self, store: Store, job: str, folder: Path) -> None:
        self._store, self._prefix, self._folder = store, f"checkpoints/{job}/", folder
        self._published = ""

    def fetch(self) -> bool:
        """Download the last complete checkpoint; return whether one existed."""
        pointer = self._read()[0]
        if pointer is None or not pointer.size:
            return False
        data = read_object(self._store, self._prefix + pointer.slot, max_bytes=_MAX_BYTES)[0]
        if len(data) != pointer.size or digest_bytes(data) != pointer.tensors_sha256:
            return False
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / _TENSORS).write_bytes(data)
        (self._folder / _STATE).write_text(pointer.state, encoding="utf-8")
        self._published = pointer.tensors_sha256
        return True

    def publish(self) -> bool:
        """Upload the checkpoint if complete and new; return whether uploaded."""
        try:
            state = (self._folder / _STATE).read_text(encoding="utf-8")
            if (self._folder / _TENSORS).stat().st_size > _MAX_BYTES or len(state) > _MAX_STATE_BYTES // 2:
                return False
            data = (self._folder / _TENSORS).read_bytes()
        except (OSError, UnicodeDecodeError):
            return False
        sha256 = digest_bytes(data)
        # The trainer may have renamed the folder in between: then state and tensors do not match.
        if sha256 == self._published or sha256 != _promised(state):
            return False
        pointer, etag = self._read()
        slot: Literal["a", "b"] = "b" if pointer is not None and pointer.slot == "a" else "a"
        self._replace(self._prefix + slot, data)
        made = _Pointer(slot=slot, size=len(data), tensors_sha256=sha256, state=state)
        self._store.swap(self._prefix + _STATE, canonical_json(made.to_json()), if_match=etag)
        self._published = sha256
        return True

    def clear(self) -> None:
        """Delete the uploaded checkpoints, once the record is complete."""
        pointer, etag = self._read()
        if pointer is None or not pointer.size:
            return
        emptied = pointer.replace(size=0, tensors_sha256=digest_bytes(b""), state="")
        self._store.swap(self._prefix + _STATE, canonical_json(emptied.to_json()), if_match=etag)
        for slot in ("a", "b"):
            with contextlib.suppress(ObjectMissingError):
                if self._store.stat(self._prefix + slot).size:
                    self._replace(self._prefix + slot, b"")

    def _read(self) -> tuple[_Pointer | None, str | None]:
        key = self._prefix + _STATE
        try:
            data, info = read_object(self._store, key, max_bytes=_MAX_STATE_BYTES)
        except ObjectMissingError:
            return None, None
        return read_model(_Pointer, data, where=f"{self._store.url}/{key}"), info.etag

    def _replace(self, key: str, data: bytes) -> None:
        try:
            etag: str | None = self._store.stat(key).etag
        except ObjectMissingError:
            etag = None
        self._store.swap(key, data, if_match=etag)


def _promised(state: str) -> str | None:
    """Return the digest that a checkpoint's state declares for its tensors."""
    try:
        content = json.loads(state)
    except (ValueError, RecursionError):
        return None
    return content.get("tensors_sha256") if isinstance(content, dict) else None


@contextlib.contextmanager
def shared_checkpoint(
    store: Store,
    job: str,
    folder: Path,
    *,
    on_problem: Callable[[str], None] = lambda _: None,
    poll_seconds: float = _POLL_SECONDS,
    least_seconds: float = _LEAST_SECONDS,
) -> Iterator[CheckpointExchange]:
    """Fetch the last checkpoint into `folder`, and upload new ones meanwhile.

    A failing outbox does not stop the training: `on_problem` receives the reason.
    """
    exchange, is_over = CheckpointExchange(store, job, folder), threading.Event()

    def attempt(operation: Callable[[], object]) -> None:
        try:
            operation()
        except (PlumblineError, OSError) as error:
            on_problem(f"checkpoint: {error}")

    def upload() -> None:
        last = time.monotonic() - least_seconds
        while not is_over.wait(poll_seconds):
            if time.monotonic() - last >= least_seconds:
                attempt(exchange.publish)
                last = time.monotonic()

    attempt(exchange.fetch)
    thread = threading.Thread(target=upload, name="checkpoint", daemon=True)
    thread.start()
    try:
        yield exchange
    finally:
        is_over.set()
        thread.join()
        # Upload a checkpoint saved because the machine stops; a completed training has none.
        attempt(exchange.publish)
