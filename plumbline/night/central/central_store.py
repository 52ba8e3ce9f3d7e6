"""Central store of the controller: artifacts by digest, markers, and documents."""

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

_ROUNDS, _ROUND_NAME = "rounds", "round.json"
_MAX_TEXT_BYTES = 64 << 20
_FORM = "%Y%m%dT%H%M%SZ"
_SWAP_ATTEMPTS = 8


def artifact_key(sha256: str) -> str:
    """Return where the central store keeps a part of a record."""
    return f"artifacts/{sha256[:2]}/{sha256}"


def round_key(suite: str, round_id: str, name: str) -> str:
    """Return the key of a round's file."""
    return f"{_ROUNDS}/{suite}/{round_id}/{name}"


def secret_key(suite: str, round_id: str) -> str:
    """Return the key of a round's secret, in a folder that nothing publishes."""
    return f"{PRIVATE}{suite}/{round_id}"


def start_key(suite: str, round_id: str, now: datetime) -> str:
    """Return the key of a started round's marker. The key contains the time."""
    return f"started/{suite}/{now.astimezone(UTC):{_FORM}}-{round_id}"


def started_at(key: str) -> datetime | None:
    """Return the start time in a marker's key. `None` if malformed."""
    stamp = key.rpartition("/")[2].partition("-")[0]
    try:
        return datetime.strptime(stamp, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None


class CentralStore:
    """Records, rounds, baselines and alert states in one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def put_record(self, loaded: LoadedRecord) -> None:
        """Keep a record, its parts verified: parts as artifacts, then the marker. Idempotent."""
        record, folder = loaded.record, loaded.folder
        for part in record.parts:
            check_part(folder, part)
            ensure_content(self.store, artifact_key(part.sha256), folder / part.key, part.sha256)
        ensure_object(self.store, record_key(record.record_id), folder / RECORD_NAME, sha256=loaded.sha256)

    def get_record(self, record_id: str, into: Path) -> LoadedRecord:
        """Download a verified record below `into`. Raise `ObjectMissingError` if absent."""
        record, data = read_untrusted(self.store, record_id)
        return receive(self.store, record, data, into, lambda part: artifact_key(part.sha256))

    def find_record(self, record_id: str) -> RunRecord | None:
        """Return a record without its parts. `None` if absent or damaged."""
        try:
            return read_untrusted(self.store, record_id)[0]
        except InvalidInputError:
            return None

    def has_record(self, record_id: str) -> bool:
        """Return whether the complete record is kept."""
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
        """Write a round's verdict. Replace an earlier one. `check` as in `put_text`."""
        key = round_key(verdict.suite, verdict.round, _ROUND_NAME)
        self.put_text(key, verdict.model_dump_json(indent=2), check)

    def get_round(self, suite: str, round_id: str) -> RoundVerdict:
        """Return a round's verdict. Raise `ObjectMissingError` if absent."""
        key = round_key(suite, round_id, _ROUND_NAME)
        return read_model(RoundVerdict, read_bytes(self.store, key), where=f"{self.store.url}/{key}")

    def find_round(self, suite: str, round_id: str) -> RoundVerdict | None:
        """Return a round's verdict. `None` if absent or unreadable."""
        try:
            return self.get_round(suite, round_id)
        except InvalidInputError:
            return None

    def list_rounds(self, suite: str | None = None) -> list[tuple[str, str]]:
        """Return (suite, round) of all rounds, or of those of one suite, sorted by round."""
        folder = f"{_ROUNDS}/{suite}/" if suite is not None else f"{_ROUNDS}/"
        keys = (info.key.split("/") for info in self.store.list(folder))
        found = {(parts[1], parts[2]) for parts in keys if len(parts) == 4 and parts[3] == _ROUND_NAME}
        return sorted(found, key=lambda name: (name[1], name[0]))

    def put_text(self, key: str, text: str, check: Callable[[], None] = lambda: None) -> None:
        """Write a text, replacing an existing one.

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
        """Return a small document. `None` if absent."""
        return self._read(key)[0]

    def change_document(self, key: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace a document by the result of `change`. `None` leaves it. Repeat if a concurrent writer was faster."""

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
        """Write the proposed content if the object still has the proposal's etag, else ask again."""
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
