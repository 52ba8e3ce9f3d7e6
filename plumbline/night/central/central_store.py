"""Central store of the controller: artifacts by digest, completion markers, documents."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from plumbline.data.stores.protocol import (
    ObjectMissingError,
    PreconditionFailedError,
    Store,
    ensure_content,
    ensure_object,
    read_bytes,
    read_object,
)
from plumbline.night.central.outbox import RECORDS, read_untrusted, receive, record_key
from plumbline.records import LoadedRecord
from plumbline.schema.base import read_model
from plumbline.schema.errors import InvalidInputError, UnavailableError
from plumbline.schema.record import RECORD_NAME, RunRecord, check_part
from plumbline.schema.store_url import PRIVATE
from plumbline.schema.verdict import RoundVerdict

ARTIFACTS = "artifacts"
_ROUNDS, _ROUND_NAME = "rounds", "round.json"
_MAX_TEXT_BYTES = 64 << 20
_FORM = "%Y%m%dT%H%M%SZ"
_SWAP_ATTEMPTS = 8


def artifact_key(sha256: str) -> str:
    """Return the central store key of a record's file."""
    return f"{ARTIFACTS}/{sha256[:2]}/{sha256}"


def round_key(suite: str, round_id: str, name: str) -> str:
    """Return the key of a round's file."""
    return f"{_ROUNDS}/{suite}/{round_id}/{name}"


def secret_key(suite: str, round_id: str) -> str:
    """Return the key of a round's secret, in an unpublished folder."""
    return f"{PRIVATE}{suite}/{round_id}"


def start_key(suite: str, round_id: str, now: datetime) -> str:
    """Return the key of a round's start marker, which contains the time."""
    return f"started/{suite}/{now.astimezone(UTC):{_FORM}}-{round_id}"


def started_at(key: str) -> datetime | None:
    """Parse the start time from a marker's key; `None` if malformed."""
    stamp = key.rpartition("/")[2].partition("-")[0]
    try:
        return datetime.strptime(stamp, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None


class CentralStore:
    """Records, rounds, baselines and alert states of suites, in one object store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def put_record(self, loaded: LoadedRecord) -> None:
        """Store a record after verification: files first, then the marker. Idempotent."""
        record, folder = loaded.record, loaded.folder
        for part in record.parts:
            check_part(folder, part)
            ensure_content(self.store, artifact_key(part.sha256), folder / part.key, part.sha256)
        ensure_object(self.store, record_key(record.record_id), folder / RECORD_NAME, sha256=loaded.sha256)

    def get_record(self, record_id: str, into: Path) -> LoadedRecord:
        """Download and verify a record below `into`; raise `ObjectMissingError` if absent."""
        record, data = read_untrusted(self.store, record_id)
        return receive(self.store, record, data, into, lambda part: artifact_key(part.sha256))

    def find_record(self, record_id: str) -> RunRecord | None:
        """Return a record without its arrays; `None` if absent or damaged."""
        try:
            return read_untrusted(self.store, record_id)[0]
        except InvalidInputError:
            return None

    def has_record(self, record_id: str) -> bool:
        """Return whether the complete record is stored."""
        try:
            self.store.stat(record_key(record_id))
        except ObjectMissingError:
            return False
        return True

    def list_records(self) -> list[str]:
        """Return the sorted ids of all records."""
        keys = (info.key.split("/") for info in self.store.list(f"{RECORDS}/"))
        return sorted(parts[1] for parts in keys if len(parts) == 3 and parts[2] == RECORD_NAME)

    def put_round(self, verdict: RoundVerdict, check: Callable[[], None] = lambda: None) -> None:
        """Write a round's verdict, replacing an earlier one. `check` as in `put_text`."""
        key = round_key(verdict.suite, verdict.round, _ROUND_NAME)
        self.put_text(key, verdict.model_dump_json(indent=2), check)

    def get_round(self, suite: str, round_id: str) -> RoundVerdict:
        """Return a round's verdict; raise `ObjectMissingError` if absent."""
        key = round_key(suite, round_id, _ROUND_NAME)
        return read_model(RoundVerdict, read_bytes(self.store, key), where=f"{self.store.url}/{key}")

    def find_round(self, suite: str, round_id: str) -> RoundVerdict | None:
        """Return a round's verdict; `None` if absent or unreadable."""
        try:
            return self.get_round(suite, round_id)
        except InvalidInputError:
            return None

    def list_rounds(self, suite: str | None = None) -> list[tuple[str, str]]:
        """Return (suite, round) of all rounds, or of one suite's, sorted."""
        folder = f"{_ROUNDS}/{suite}/" if suite is not None else f"{_ROUNDS}/"
        keys = (info.key.split("/") for info in self.store.list(folder))
        found = {(parts[1], parts[2]) for parts in keys if len(parts) == 4 and parts[3] == _ROUND_NAME}
        return sorted(found, key=lambda name: (name[1], name[0]))

    def put_text(self, key: str, text: str, check: Callable[[], None] = lambda: None) -> None:
        """Write a text object, replacing an existing one.

        `check` may raise to prevent the write. A text that is written after `check` is never replaced.
        """

        def propose() -> tuple[bytes, str | None]:
            try:
                etag: str | None = self.store.stat(key).etag
            except ObjectMissingError:
                etag = None
            check()
            return text.encode(), etag

        self._swap(key, propose)

    def read_document(self, key: str) -> bytes | None:
        """Return a small document, or `None` if absent."""
        return self._read(key)[0]

    def change_document(self, key: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace a document by the result of `change`, retrying on conflicts."""

        def propose() -> tuple[bytes | None, str | None]:
            data, etag = self._read(key)
            return change(data), etag

        self._swap(key, propose)

    def _read(self, key: str) -> tuple[bytes | None, str | None]:
        try:
            data, info = read_object(self.store, key, max_bytes=_MAX_TEXT_BYTES)
        except ObjectMissingError:
            return None, None
        return data, info.etag

    def _swap(self, key: str, propose: Callable[[], tuple[bytes | None, str | None]]) -> None:
        """Write proposed content by compare-and-swap, with a new proposal after conflicts."""
        for _ in range(_SWAP_ATTEMPTS):
            data, etag = propose()
            if data is None:
                return
            try:
                self.store.swap(key, data, if_match=etag)
            except PreconditionFailedError:
                continue
            return
        raise UnavailableError("other writers keep changing the document", where=self.store.url, key=key)
