"""Parallel download of one object over several connections, in stripes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from plumbline.data.stores.protocol import ObjectInfo, PreconditionFailedError, Store
from plumbline.data.stores.retry import ResumingReader, RetryPolicy

SMALLEST_BYTES = 1 << 20
LARGEST_BYTES = 4 << 20
_WORTH_WAKING_BYTES = 256 << 10


def worth_striping(size: int, connections: int) -> bool:
    """Return whether several connections download `size` bytes sooner."""
    return connections > 1 and size >= 2 * SMALLEST_BYTES


class Connections:
    """Semaphore that limits the number of connections in use."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = count
        self._changed = threading.Condition()

    def take(self, wanted: Callable[[], bool]) -> bool:
        """Acquire a free connection; return `False` once `wanted()` is false."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or not wanted())
            if not wanted():
                return False
            self._free -= 1
            return True

    def give(self) -> None:
        """Release a connection."""
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def wake(self) -> None:
        """Make waiting threads check `wanted()` again."""
        with self._changed:
            self._changed.notify_all()


_UNKNOWN = ObjectInfo("", 0, "unknown")


@dataclass(slots=True)
class _Stripe:
    offset: int
    length: int
    buffer: memoryview
    filled: int = 0
    given: int = 0
    info: ObjectInfo = _UNKNOWN
    error: Exception | None = None


class StripingReader:
    """Reader of an object from `offset` on, using all free connections.

    Each connection fetches one stripe at a time into its own buffer, under the retry policy, and the next stripe only
    after the buffer is read: memory is connections times stripe size. `on_last` is called when the last stripe has its
    connection, so that other files may use connections that become free from then on.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        policy: RetryPolicy,
        connections: Connections,
        *,
        offset: int,
        size: int,
        if_match: str | None,
        on_retry: Callable[[str], None],
        on_last: Callable[[], None],
    ) -> None:
        self._store = store
        self._key = key
        self._policy = policy
        self._connections = connections
        self._position = self._next = offset
        self._end = size
        self._etag = if_match
        self._on_retry = on_retry
        self._on_last = on_last
        self._length = max(SMALLEST_BYTES, min(LARGEST_BYTES, -(-(size - offset) // connections.count)))
        self._stripes: deque[_Stripe] = deque()
        self._changed = threading.Condition()
        self._closed = False
        stripes = -(-(size - offset) // self._length)
        self._threads = [
            threading.Thread(target=self._run, name="stripe", daemon=True)
            for _ in range(min(connections.count, stripes))
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.info = self._head(lambda stripe: stripe.info is not _UNKNOWN).info
        except BaseException:
            self.close()
            raise

    def _head(self, ready: Callable[[_Stripe], bool]) -> _Stripe:
        """Wait for the next stripe in order; raise its error."""
        with self._changed:
            self._changed.wait_for(lambda: self._stripes and (ready(self._stripes[0]) or self._stripes[0].error))
            stripe = self._stripes[0]
        if not ready(stripe) and stripe.error is not None:
            raise stripe.error
        return stripe

    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes; return 0 only at the object's end."""
        if self._position == self._end:
            return 0
        stripe = self._head(lambda stripe: stripe.filled > stripe.given)
        if stripe.info != self.info:
            raise PreconditionFailedError("the object has changed", where=self._store.url, key=self._key)
        size = min(len(buffer), stripe.filled - stripe.given)
        buffer[:size] = stripe.buffer[stripe.given : stripe.given + size]
        stripe.given += size
        self._position += size
        if stripe.given == stripe.length:
            with self._changed:
                self._stripes.popleft()
                self._changed.notify_all()
        return size

    def close(self) -> None:
        """Cancel all stripes, and release the connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._connections.wake()
        for thread in self._threads:
            thread.join()

    def _wanted(self) -> bool:
        return not self._closed and self._next < self._end

    def _run(self) -> None:
        if not self._connections.take(self._wanted):
            return
        try:
            buffer = memoryview(bytearray(self._length))
            while (stripe := self._begin(buffer)) is not None:
                try:
                    self._fetch(stripe)
                except Exception as error:  # noqa: BLE001 - the thread's end: the reader receives the error
                    stripe.error = error
                with self._changed:
                    self._changed.notify_all()
                    self._changed.wait_for(partial(self._over, stripe))
        finally:
            self._connections.give()

    def _over(self, stripe: _Stripe) -> bool:
        return self._closed or stripe.given == stripe.length

    def _begin(self, buffer: memoryview) -> _Stripe | None:
        with self._changed:
            if not self._wanted():
                return None
            stripe = _Stripe(self._next, min(self._length, self._end - self._next), buffer)
            self._next += stripe.length
            self._stripes.append(stripe)
            last = self._next >= self._end
        if last:
            self._on_last()
        return stripe

    def _fetch(self, stripe: _Stripe) -> None:
        reader = ResumingReader(
            self._store, self._key, self._policy, offset=stripe.offset, length=stripe.length, if_match=self._etag,
            on_retry=self._note,
        )  # fmt: skip
        with closing(reader):
            # Stripes begun before the first answer cannot request an etag: compare each answer.
            self._etag = self._etag or reader.info.etag or None
            self._tell(stripe, 0, reader.info)
            while stripe.filled < stripe.length and not self._closed:
                size = reader.readinto(stripe.buffer[stripe.filled : stripe.length])
                if not size:
                    raise PreconditionFailedError("the object has changed", where=self._store.url, key=self._key)
                self._tell(stripe, size, reader.info)

    def _tell(self, stripe: _Stripe, size: int, info: ObjectInfo) -> None:
        with self._changed:
            stripe.info = info
            stripe.filled += size
            # Wake the reader only for enough bytes of its next stripe.
            fresh = stripe.filled == stripe.length or stripe.filled - stripe.given >= _WORTH_WAKING_BYTES
            if not size or (fresh and stripe is self._stripes[0]):
                self._changed.notify_all()

    def _note(self, reason: str) -> None:
        if self._closed:
            raise PreconditionFailedError("the reader was closed", where=self._store.url, key=self._key)
        self._on_retry(reason)
