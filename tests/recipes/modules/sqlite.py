"""Store of the recipe in CONTRIBUTING.md: the objects of one SQLite file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbline.data.stores.body import opened
from plumbline.data.stores.opening import Timeouts
from plumbline.data.stores.protocol import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
    checked_key,
)
from plumbline.schema.store_url import StoreAddress

_TABLE = "CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, version INTEGER, data BLOB)"
_NEXT = "(SELECT coalesce(max(version), 0) + 1 FROM objects)"


class _Reader:
    def __init__(self, info: ObjectInfo, blob: sqlite3.Blob, end: int) -> None:
        self.info, self._blob, self._end = info, blob, end

    def readinto(self, buffer: memoryview, /) -> int:
        data = self._blob.read(min(len(buffer), self._end - self._blob.tell()))
        buffer[: len(data)] = data
        return len(data)


class SqliteStore:
    """Store in one file."""

    def __init__(self, url: str, path: Path, wait_seconds: float) -> None:
        self.url, self._path, self._wait = url, path, wait_seconds

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._path, self._wait)) as database, database:
                database.execute(_TABLE)
                yield database
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreUnavailableError(str(error), where=self.url) from error

    def _info(self, database: sqlite3.Connection, key: str) -> tuple[int, ObjectInfo]:
        query = "SELECT rowid, length(data), version FROM objects WHERE key = ?"
        row = database.execute(query, (checked_key(key, self.url),)).fetchone()
        if row is None:
            raise ObjectMissingError("no such object", where=self.url, key=key)
        return row[0], ObjectInfo(key, row[1], f"v{row[2]}")

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[_Reader]:
        """Read from `offset`."""
        with self._database() as database:
            row, info = self._info(database, key)
            if if_match not in (None, info.etag):
                raise PreconditionFailedError("the object has changed", where=self.url, key=key)
            with database.blobopen("objects", "data", row, readonly=True) as blob:
                blob.seek(offset)
                yield _Reader(info, blob, info.size if length is None else min(info.size, offset + length))

    def stat(self, key: str) -> ObjectInfo:
        """Return size and etag."""
        with self._database() as database:
            return self._info(database, key)[1]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
        query = "SELECT key, length(data), version FROM objects WHERE substr(key, 1, ?) = ? ORDER BY key"
        with self._database() as database:
            rows = database.execute(query, (len(prefix), prefix)).fetchall()
        return iter([ObjectInfo(key, size, f"v{version}") for key, size, version in rows])

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object."""
        with opened(data) as (body, _), self._database() as database:
            command = f"INSERT INTO objects VALUES (?, {_NEXT}, ?)"  # noqa: S608 - a constant
            try:
                database.execute(command, (checked_key(key, self.url), body.read()))
            except sqlite3.IntegrityError as error:
                raise ObjectExistsError("exists already", where=self.url, key=key) from error
            return self._info(database, key)[1]

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object of etag `if_match`."""
        with self._database() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                etag: str | None = self._info(database, key)[1].etag
            except ObjectMissingError:
                etag = None
            if etag != if_match:
                raise PreconditionFailedError("the object has changed", where=self.url, key=key)
            command = f"INSERT OR REPLACE INTO objects VALUES (?, {_NEXT}, ?)"  # noqa: S608 - a constant
            database.execute(command, (key, bytes(data)))
            return self._info(database, key)[1]

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        with self._database() as database:
            database.execute("DELETE FROM objects WHERE key = ?", (checked_key(key, self.url),))


def open_url(url: str, address: StoreAddress, waits: Timeouts) -> SqliteStore:
    """Return the store at a URL of this kind."""
    return SqliteStore(url, Path(address.prefix), waits.read_seconds)
