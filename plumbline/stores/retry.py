"""The one retry policy, above all SDKs: what a passing failure is, how long to wait, when to give up.

Backends retry nothing and raise `StoreUnavailableError` for what may pass. Credentials refused, an object missing or
changed are final at once. A body that breaks off goes on where it stopped, while the object's etag is the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from plumbline.digest import digest_bytes, digest_file
from plumbline.errors import UnavailableError
from plumbline.stores.base import (
    ObjectExistsError,
    ObjectInfo,
    ObjectReader,
    PreconditionFailedError,
    Store,
    StoreUnavailableError,
)
from plumbline.stores.writing import digest_object

__all__ = ["Attempts", "ResumingReader", "RetryPolicy", "RetryingStore"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to try again, and when no more. Clock, sleep and randomness are passed in."""

    attempts: int = 6
    first_seconds: float = 0.5
    longest_seconds: float = 20.0
    deadline_seconds: float = 120.0
    """From the first failure without progress since: what takes long is not what fails."""
    lowest_rate: float = 16 << 10
    """Bytes per second below which a connection is given up, over `rate_window_seconds` of waiting for it."""
    rate_window_seconds: float = 15.0
    progress_bytes: int = 1 << 20
    """What has to arrive between two failures for the first to be forgotten."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = field(default=random.random)

    def delay(self, failures: int, retry_after: float | None) -> float:
        """Seconds to wait after so many failures: doubling, with jitter, never less than the server asks."""
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** (failures - 1))
        return max(longest * (0.5 + 0.5 * self.random()), retry_after or 0.0)


class Attempts:
    """The failures of one operation so far."""

    def __init__(self, policy: RetryPolicy, where: str) -> None:
        self._policy = policy
        self._where = where
        self.failures = 0
        self.last = ""
        self._first_failure = 0.0

    def progress(self) -> None:
        """The operation moved on: earlier failures count no more."""
        self.failures = 0

    def failed(self, error: StoreUnavailableError) -> None:
        """Wait before the next attempt, or raise when there is none left."""
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
    """An object's bytes across as many connections as it takes, each no slower than the policy allows."""

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
        """The next bytes; 0 only at the end of what was asked for."""
        # A store refuses to read on from the end: nothing is asked there, however slowly the last bytes came.
        while self._offset < self._end:
            begin = self._policy.clock()
            try:
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
        """Give the connection back."""
        self._stack.close()


class RetryingStore:
    """A store under the retry policy; itself a `Store`."""

    def __init__(self, store: Store, policy: RetryPolicy | None = None) -> None:
        self.url = store.url
        self.inner = store
        self.policy = policy or RetryPolicy()

    def _call(self, key: str, operation: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        attempts = Attempts(self.policy, f"{self.url}/{key}")
        while True:
            try:
                return again() if again is not None and attempts.failures else operation()
            except StoreUnavailableError as error:
                attempts.failed(error)

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[ResumingReader]:
        """Read from `offset`, going on after a failure."""
        reader = ResumingReader(self.inner, key, self.policy, offset=offset, length=length, if_match=if_match)
        try:
            yield reader
        finally:
            reader.close()

    def stat(self, key: str) -> ObjectInfo:
        """Size and etag."""
        return self._call(key, lambda: self.inner.stat(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`: listed whole, so that a failure leaves no gap."""
        return iter(self._call(prefix, lambda: list(self.inner.list(prefix))))

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object; a second attempt may meet its own first one, and then has succeeded."""

        def again() -> ObjectInfo:
            try:
                return self.inner.create(key, data)
            except ObjectExistsError:
                ours = digest_file(data) if isinstance(data, Path) else digest_bytes(data)
                if digest_object(self.inner, key)[1] == ours:
                    return self.inner.stat(key)
                raise

        return self._call(key, lambda: self.inner.create(key, data), again)

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Compare and swap; a second attempt may meet its own first one, and then has succeeded."""

        def again() -> ObjectInfo:
            try:
                return self.inner.swap(key, data, if_match=if_match)
            except PreconditionFailedError:
                if digest_object(self.inner, key)[1] == digest_bytes(data):
                    return self.inner.stat(key)
                raise

        return self._call(key, lambda: self.inner.swap(key, data, if_match=if_match), again)

    def delete(self, key: str) -> None:
        """Remove an object; a second attempt may find it gone, which is right."""
        self._call(key, lambda: self.inner.delete(key))
