"""Retry policy for all stores: which errors are temporary, delays, limits.

Backends never retry and raise `StoreUnavailableError` for temporary failures. Refused credentials and missing or
changed objects are final at once. An interrupted body resumes at its offset, while the object's etag is the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from plumbline.data.stores.protocol import (
    ObjectExistsError,
    ObjectInfo,
    ObjectReader,
    PreconditionFailedError,
    Store,
    StoreUnavailableError,
    digest_object,
    is_folder_marker,
)
from plumbline.schema.digest import digest_bytes, digest_file
from plumbline.schema.errors import PlumblineError, UnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries, with injectable clock, sleep and randomness."""

    attempts: int = 6
    first_seconds: float = 0.5
    longest_seconds: float = 20.0
    deadline_seconds: float = 120.0
    """Maximum seconds since the first failure without progress; slow progress is not a failure."""
    lowest_rate: float = 16 << 10
    """Minimum bytes per second of a connection, over `rate_window_seconds` of waiting."""
    rate_window_seconds: float = 15.0
    progress_bytes: int = 1 << 20
    """Bytes after which earlier failures no longer count."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = field(default=random.random)

    def delay(self, failures: int, retry_after: float | None) -> float:
        """Return the delay: exponential with jitter, at least `retry_after`."""
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** (failures - 1))
        return max(longest * (0.5 + 0.5 * self.random()), retry_after or 0.0)


@contextmanager
def backend_errors(where: str) -> Iterator[None]:
    """Convert what a backend raises to an error of its store; a package that is not installed is none."""
    try:
        yield
    except (PlumblineError, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        text = f"an answer that no store gives: {type(error).__name__}"
        raise StoreUnavailableError(text, where=where) from error


class Attempts:
    """Counter of an operation's consecutive failures."""

    def __init__(self, policy: RetryPolicy, where: str) -> None:
        self._policy = policy
        self._where = where
        self.failures = 0
        self.last = ""
        self._first_failure = 0.0

    def progress(self) -> None:
        """Reset the failure count, as the operation made progress."""
        self.failures = 0

    def failed(self, error: StoreUnavailableError) -> None:
        """Sleep before the next attempt, or raise if none is left."""
        now = self._policy.clock()
        if not self.failures:
            self._first_failure = now
        self.failures += 1
        self.last = error.what
        wait = self._policy.delay(self.failures, error.retry_after_seconds)
        spent = now - self._first_failure
        if self.failures >= self._policy.attempts or spent + wait > self._policy.deadline_seconds:
            raise UnavailableError(
                f"{error.what}; gave up after {self.failures} attempts in {spent:.0f} s", where=self._where
            ) from error
        self._policy.sleep(wait)


class ResumingReader:
    """Object reader that reconnects after failures and enforces a minimum rate."""

    def __init__(
        self,
        store: Store,
        key: str,
        policy: RetryPolicy,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        on_retry: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._key = key
        self._policy = policy
        self._offset = offset
        self._last = None if length is None else offset + length
        self._etag = if_match
        self._on_retry = on_retry
        self._attempts = Attempts(policy, f"{store.url}/{key}")
        self._since_failure = 0
        self._stack = ExitStack()
        self._connect()

    def _connect(self) -> None:
        while True:
            self.close()
            try:
                with backend_errors(self._store.url):
                    self._reader: ObjectReader = self._stack.enter_context(
                        self._store.open(self._key, offset=self._offset, length=self._length, if_match=self._etag)
                    )
            except StoreUnavailableError as error:
                self._note(error)
                self._attempts.failed(error)
                continue
            self.info = self._reader.info
            self._end = self.info.size if self._last is None else min(self.info.size, self._last)
            self._etag = self._etag or self.info.etag or None
            self._window_bytes, self._window_seconds, self._too_slow = 0, 0.0, ""
            return

    @property
    def _length(self) -> int | None:
        return None if self._last is None else self._last - self._offset

    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes. Return 0 only at the end."""
        # A store refuses reads at the end: send no request there.
        while self._offset < self._end:
            begin = self._policy.clock()
            try:
                with backend_errors(self._store.url):
                    size = self._fast_enough().readinto(buffer)
            except StoreUnavailableError as error:
                self._note(error)
                self._attempts.failed(error)
                self._connect()
                continue
            self._offset += size
            self._measure(size, self._policy.clock() - begin)
            return size
        return 0

    def _fast_enough(self) -> ObjectReader:
        if self._too_slow:
            raise StoreUnavailableError(self._too_slow)
        return self._reader

    def _note(self, error: StoreUnavailableError) -> None:
        self._since_failure = 0
        if self._on_retry is not None:
            self._on_retry(error.what)

    def _measure(self, size: int, seconds: float) -> None:
        self._since_failure += size
        if self._attempts.failures and self._since_failure >= self._policy.progress_bytes:
            self._attempts.progress()
        self._window_bytes += size
        self._window_seconds += seconds
        if size and self._window_seconds >= self._policy.rate_window_seconds:
            if self._window_bytes < self._policy.lowest_rate * self._window_seconds:
                rate = self._window_bytes / self._window_seconds / 1024
                self._too_slow = f"only {rate:.1f} KiB/s arrive"
            self._window_bytes, self._window_seconds = 0, 0.0

    def close(self) -> None:
        """Close the reader's connection."""
        self._stack.close()


class RetryingStore:
    """Store wrapper that retries temporary failures."""

    def __init__(self, store: Store, policy: RetryPolicy | None = None) -> None:
        self.url = store.url
        self.inner = store
        self.policy = policy or RetryPolicy()

    def _call(self, key: str, operation: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        attempts = Attempts(self.policy, f"{self.url}/{key}")
        while True:
            try:
                with backend_errors(self.url):
                    return again() if again is not None and attempts.failures else operation()
            except StoreUnavailableError as error:
                attempts.failed(error)

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[ResumingReader]:
        """Open an object for reading from `offset`, resuming after failures."""
        reader = ResumingReader(self.inner, key, self.policy, offset=offset, length=length, if_match=if_match)
        try:
            yield reader
        finally:
            reader.close()

    def stat(self, key: str) -> ObjectInfo:
        """Return an object's size and etag."""
        return self._call(key, lambda: self.inner.stat(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Return all objects whose key starts with `prefix`, without folder markers."""
        infos = self._call(prefix, lambda: list(self.inner.list(prefix)))
        if any(not info.key.startswith(prefix) for info in infos):
            raise UnavailableError("the list has objects that were not asked for", where=f"{self.url}/{prefix}")
        return iter([info for info in infos if not is_folder_marker(info.key, info.size)])

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object; a retry accepts its own earlier write."""
        return self._write(key, data, lambda: self.inner.create(key, data))

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace an object by etag; a retry accepts its own earlier write."""
        return self._write(key, data, lambda: self.inner.swap(key, data, if_match=if_match))

    def _write(self, key: str, data: bytes | Path, write: Callable[[], ObjectInfo]) -> ObjectInfo:
        def again() -> ObjectInfo:
            try:
                return write()
            except (ObjectExistsError, PreconditionFailedError):
                ours = digest_file(data) if isinstance(data, Path) else digest_bytes(data)
                if digest_object(self.inner, key)[1] == ours:
                    return self.inner.stat(key)
                raise

        return self._call(key, write, again)

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        self._call(key, lambda: self.inner.delete(key))
