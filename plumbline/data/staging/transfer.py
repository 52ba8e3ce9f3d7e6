"""Download of an object into the cache: resumable and verified."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from plumbline.data.staging.cache import Cache
from plumbline.data.staging.part import Part, disk_errors
from plumbline.data.staging.striping import Connections, StripingReader, worth_striping
from plumbline.data.stores.protocol import PreconditionFailedError, Store
from plumbline.data.stores.retry import ResumingReader, RetryingStore, RetryPolicy
from plumbline.schema.errors import CorruptDataError, DiskFullError, UnavailableError
from plumbline.schema.manifest import DataFile

BUFFER_BYTES = 1 << 20
_ROUNDS = 3
_WAIT_SECONDS = 0.05


class StagingStoppedError(UnavailableError):
    """Error: the stager was closed during an operation."""


class Transfer:
    """Downloader with one buffer, using one or all free connections."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        connections: Connections,
        stopped: threading.Event,
        *,
        on_bytes: Callable[[int], None],
        on_trouble: Callable[[str, str], None],
    ) -> None:
        self._store = store.inner if isinstance(store, RetryingStore) else store
        self._policy = store.policy if isinstance(store, RetryingStore) else RetryPolicy()
        self._cache = cache
        self._connections = connections
        self._stopped = stopped
        self._on_bytes = on_bytes
        self._on_trouble = on_trouble
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def fetch(self, file: DataFile, key: str, on_last: Callable[[], None] | None = None) -> Path:
        """Download object `key` into the cache, verified by `file`'s digest.

        With `on_last`, several connections are used, and `on_last` is called once other files may use freed
        connections.
        """

        def wait() -> None:
            if on_last is not None:
                on_last()
            self._on_trouble(file.sha256, "locked by a different process")
            if self._stopped.wait(_WAIT_SECONDS):
                raise StagingStoppedError("staging was stopped", where=key)

        with self._cache.part(file.sha256, wait) as part:
            if part is None:
                found = self._cache.path(file.sha256, file.size)
                if found is None:
                    raise CorruptDataError(f"is not {file.size} bytes long", where=self._store.url, key=key)
                return found
            try:
                with disk_errors(self._cache.folder):
                    return self._fill(part, file, key, on_last)
            except (DiskFullError, CorruptDataError):
                part.discard()
                raise

    def _fill(self, part: Part, file: DataFile, key: str, on_last: Callable[[], None] | None) -> Path:
        why = ""
        for _ in range(_ROUNDS):
            try:
                why = self._round(part, file, key, on_last)
            except PreconditionFailedError:
                why = "changes while it is read"
            if not why:
                return part.commit()
            self._on_trouble(file.sha256, why)
            part.reset()
        raise CorruptDataError(f"{why}; read {_ROUNDS} times", where=self._store.url, key=key)

    def _round(self, part: Part, file: DataFile, key: str, on_last: Callable[[], None] | None) -> str:
        """Download the missing bytes; return the problem, or ""."""
        if part.size > file.size:
            part.reset()
        have = part.size
        hasher = part.hashed(self._buffer)
        if have < file.size or not have:
            with self._reader(file, key, have, part.etag if have else None, on_last) as reader:
                if reader.info.size != file.size:
                    return f"is {reader.info.size} bytes long, the manifest says {file.size}"
                part.keep_etag(reader.info.etag)
                while size := reader.readinto(self._buffer):
                    hasher.update(self._buffer[:size])
                    part.write(self._buffer[:size])
                    self._on_bytes(size)
                    if self._stopped.is_set():
                        raise StagingStoppedError("staging was stopped", where=key)
        return "" if hasher.hexdigest() == file.sha256 else "does not match the digest in the manifest"

    @contextmanager
    def _reader(
        self, file: DataFile, key: str, have: int, etag: str | None, on_last: Callable[[], None] | None
    ) -> Iterator[ResumingReader | StripingReader]:
        """Open a reader of the missing bytes; the partial file is locked."""

        def note(reason: str) -> None:
            self._on_trouble(file.sha256, reason)

        if on_last is not None and worth_striping(file.size - have, self._connections.count):
            striping = StripingReader(
                self._store, key, self._policy, self._connections, offset=have, size=file.size, if_match=etag,
                on_retry=note, on_last=on_last,
            )  # fmt: skip
            with closing(striping):
                yield striping
            return
        if on_last is not None:
            on_last()
        if not self._connections.take(lambda: not self._stopped.is_set()):
            raise StagingStoppedError("staging was stopped", where=key)
        try:
            reader = ResumingReader(self._store, key, self._policy, offset=have, if_match=etag, on_retry=note)
            with closing(reader):
                yield reader
        finally:
            self._connections.give()
