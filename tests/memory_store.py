"""Store in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbline.data.stores.body import opened
from plumbline.data.stores.protocol import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    checked_key,
)
from plumbline.schema.errors import UnavailableError


class _Reader:
    def __init__(self, info: ObjectInfo, data: bytes, offset: int, length: int | None) -> None:
        self.info = info
        self._rest = memoryview(data)[offset:][:length]

    def readinto(self, buffer: memoryview, /) -> int:
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class MemoryStore:
    """Objects in a dictionary; thread-safe."""

    def __init__(self, url: str = "memory://test") -> None:
        self.url = url
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[ObjectInfo, bytes]] = {}
        self._writes = 0

    def _get(self, key: str) -> tuple[ObjectInfo, bytes]:
        with self._lock:
            if key not in self._objects:
                raise ObjectMissingError("no such object", where=self.url, key=key)
            return self._objects[key]

    def _put(self, key: str, data: bytes) -> ObjectInfo:
        self._writes += 1
        info = ObjectInfo(key, len(data), f"v{self._writes}")
        self._objects[key] = (info, data)
        return info

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[_Reader]:
        """Read from `offset`."""
        info, data = self._get(checked_key(key, self.url))
        if if_match is not None and info.etag != if_match:
            raise PreconditionFailedError("the object has changed", where=self.url, key=key)
        yield _Reader(info, data, offset, length)

    def stat(self, key: str) -> ObjectInfo:
        """Return size and etag."""
        return self._get(checked_key(key, self.url))[0]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix))
            return iter([self._objects[key][0] for key in keys])

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object."""
        with opened(data) as (body, _):
            content = body.read()
        with self._lock:
            if checked_key(key, self.url) in self._objects:
                raise ObjectExistsError("exists already", where=self.url, key=key)
            return self._put(key, content)

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object whose etag is `if_match`."""
        with self._lock:
            current = self._objects.get(checked_key(key, self.url))
            if (current[0].etag if current else None) != if_match:
                raise PreconditionFailedError("the object has changed", where=self.url, key=key)
            return self._put(key, bytes(data))

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        with self._lock:
            self._objects.pop(checked_key(key, self.url), None)


class BreakingStore(MemoryStore):
    """Store that fails at every new object after the next `left`."""

    left = 0

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Create an object, or raise `UnavailableError`."""
        if not self.left:
            raise UnavailableError("the store is gone")
        self.left -= 1
        return super().create(key, data)
