"""Stager: download a dataset's files in training order, limited ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from typing_extensions import Self

from plumbline.data.staging.cache import Cache
from plumbline.data.staging.pace import Pace, StagingProgress
from plumbline.data.staging.striping import Connections, worth_striping
from plumbline.data.staging.transfer import StagingStoppedError, Transfer
from plumbline.data.stores.protocol import Store, read_object
from plumbline.schema.base import read_model
from plumbline.schema.errors import DiskFullError, InvalidInputError
from plumbline.schema.manifest import DataFile, Manifest

MANIFEST_NAME = "manifest.json"
_MAX_MANIFEST_BYTES = 64 << 20
_TELL_SECONDS = 1.0
_FAST_RATE = 100 << 20


def fetch_manifest(store: Store, dataset: str, cache: Cache) -> tuple[Manifest, str]:
    """Return the dataset's current manifest and digest, cached if unchanged."""
    key = f"{dataset}/{MANIFEST_NAME}"
    location = f"{store.url}/{key}"
    etag = store.stat(key).etag
    known = cache.current(location, etag) if etag else None
    if known is not None:
        return known, known.digest
    data, info = read_object(store, key, max_bytes=_MAX_MANIFEST_BYTES)
    manifest = read_model(Manifest, data, where=location)
    if manifest.name != dataset:
        raise InvalidInputError(f"is the manifest of {manifest.name!r}", where=location, key="name")
    digest = cache.keep_manifest(manifest)
    cache.keep_current(location, info.etag, digest)
    return manifest, digest


@dataclass(slots=True)
class _Job:
    index: int
    file: DataFile
    key: str
    path: Path | None = None
    running: bool = False
    error: Exception | None = None
    why: str = ""


class Stager:
    """Context manager that downloads a dataset to the cache, in background threads.

    At most `window` files beyond the last requested one are begun, over at most `connections` connections: one per
    file, or all of them for a single file while training is about to wait. `on_progress` is called about once a second
    while a caller waits.
    """

    def __init__(
        self,
        store: Store,
        dataset: str,
        cache: Cache,
        *,
        connections: int = 4,
        window: int = 8,
        on_progress: Callable[[StagingProgress], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.manifest: Manifest
        self.manifest_sha256: str
        self.waits: list[tuple[str, float, str]] = []
        """Each wait for a file that was not there yet: its key, seconds, and why."""
        self.bytes_moved = 0
        self._store = store
        self._dataset = dataset
        self._cache = cache
        self._connections = Connections(connections)
        self._window = max(1, window)
        self._pace = Pace(min(connections, self._window))
        self._spreading: _Job | None = None
        self._on_progress = on_progress
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._order: list[_Job] = []
        self._next = 0
        self._consumed = 0
        self._hits = 0
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._threads: list[threading.Thread] = []
        self._leases = ExitStack()
        self._begin = self._started = clock()

    def __enter__(self) -> Self:
        self.manifest, self.manifest_sha256 = fetch_manifest(self._store, self._dataset, self._cache)
        self._leases.enter_context(self._cache.lease(self.manifest_sha256))
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._connections.wake()
        for thread in self._threads:
            thread.join()
        if isinstance(self._failure, DiskFullError):
            # Remove partial downloads, which would only fill the disk.
            self._cache.discard_parts(job.file.sha256 for job in self._order if job.path is None)
        self._leases.close()

    def start(self, files: Sequence[DataFile]) -> None:
        """Request these files, in order, after all earlier requests."""
        with self._changed:
            for file in files:
                known = self._jobs.get(file.sha256)
                if known is not None and known.file.size != file.size:
                    text = f"has the digest of {known.file.key!r}, but a different length"
                    raise InvalidInputError(text, where=f"{self._store.url}/{self._dataset}", key=file.key)
                if known is None:
                    job = _Job(len(self._order), file, f"{self._dataset}/{file.key}")
                    self._jobs[file.sha256] = job
                    self._order.append(job)
                    self._look(job)
            missing = [job.file for job in self._order if job.path is None]
            needed = sum(max(0, file.size - self._cache.part_size(file.sha256)) for file in missing)
            self._cache.make_room(needed)
            if not self._threads:
                self._started = self._clock()
            for _ in range(min(self._connections.count, len(missing)) - len(self._threads)):
                thread = threading.Thread(target=self._work, name="stage", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def _look(self, job: _Job) -> None:
        job.path = self._cache.path(job.file.sha256, job.file.size)
        if job.path is not None:
            self._hits += 1
            self._cache.touch(job.path)

    def wait(self, file: DataFile) -> Path:
        """Wait for a file, and return its verified path; raise download errors."""
        if file.sha256 not in self._jobs:
            self.start([file])
        job = self._jobs[file.sha256]
        begin = reported_at = self._clock()
        with self._changed:
            self._consumed = max(self._consumed, job.index + 1)
            self._changed.notify_all()
            self._pace.asked(begin, there=job.path is not None)
            if job.path is not None:
                self._pace.given(begin)
                return job.path
            why = "" if job.running else "not begun: earlier files were under way"
            while job.path is None:
                error = job.error or self._failure
                if error is not None:
                    raise error
                if self._stopped.is_set():
                    raise StagingStoppedError("the stager is closed", where=job.key)
                self._changed.wait(_TELL_SECONDS)
                reported_at = self._tell(reported_at)
            end = self._clock()
            self._pace.given(end)
            self.waits.append((file.key, end - begin, job.why or why or "the transfer was under way"))
            return job.path

    def _tell(self, reported_at: float) -> float:
        """Report progress at most once a second; return the last report's time."""
        if self._on_progress is None or (now := self._clock()) - reported_at < _TELL_SECONDS:
            return reported_at
        self._on_progress(self.progress())
        return now

    def fetch(self, key: str, sha256: str) -> Path:
        """Download an object that is not in the manifest; return its path."""
        self._leases.enter_context(self._cache.lease(sha256))
        path = self._cache.path(sha256)
        if path is not None:
            self._cache.touch(path)
            return path
        file = DataFile(key=key, size=self._store.stat(key).size, sha256=sha256)
        self._cache.make_room(max(0, file.size - self._cache.part_size(sha256)))
        return self._transfer(Connections(1)).fetch(file, key)

    def progress(self) -> StagingProgress:
        """Return the current progress."""
        with self._changed:
            done = [job for job in self._order if job.path is not None]
            return StagingProgress(
                files=len(self._order),
                files_done=len(done),
                hits=self._hits,
                bytes_total=sum(job.file.size for job in self._order),
                bytes_done=sum(job.file.size for job in done),
                bytes_moved=self.bytes_moved,
                seconds=self._clock() - self._begin,
            )

    def _transfer(self, connections: Connections) -> Transfer:
        return Transfer(
            self._store, self._cache, connections, self._stopped, on_bytes=self._count, on_trouble=self._trouble
        )

    def _count(self, size: int) -> None:
        with self._changed:
            self.bytes_moved += size

    def _trouble(self, sha256: str, why: str) -> None:
        if (job := self._jobs.get(sha256)) is not None:
            job.why = why

    def _take(self) -> tuple[_Job, bool] | None:
        """Return the next file, and whether to use all connections."""
        with self._changed:
            while not self._stopped.is_set() and self._failure is None:
                while self._next < len(self._order) and self._order[self._next].path is not None:
                    self._next += 1
                if self._spreading is None and self._next < min(len(self._order), self._consumed + self._window):
                    job = self._order[self._next]
                    self._next += 1
                    job.running = True
                    if spread := self._hurries(job):
                        self._spreading = job
                    return job, spread
                self._changed.wait()
        return None

    def _hurries(self, job: _Job) -> bool:
        if not worth_striping(job.file.size, self._connections.count):
            return False
        coming = self._order[self._consumed : job.index]
        ahead = next((number for number, other in enumerate(coming) if other.path is None), len(coming))
        now = self._clock()
        # At such a rate per connection this machine is the limit, not the link, and stripes would cost more CPU.
        fast = self.bytes_moved > _FAST_RATE * self._connections.count * (now - self._started)
        return not fast and self._pace.hurries(ahead, now)

    def _spread(self, job: _Job) -> None:
        """Let the next file start, as `job` needs no more connections."""
        with self._changed:
            if self._spreading is job:
                self._spreading = None
                self._changed.notify_all()

    def _work(self) -> None:
        transfer = self._transfer(self._connections)
        while (taken := self._take()) is not None:
            job, spread = taken
            try:
                path, error = transfer.fetch(job.file, job.key, partial(self._spread, job) if spread else None), None
            except Exception as raised:  # noqa: BLE001 - the thread's end: waiting callers receive the error
                path, error = None, raised
            self._spread(job)
            with self._changed:
                job.path, job.error = path, error
                self._failure = self._failure or error
                self._changed.notify_all()
