"""Partial download of an object: locked, resumable, renamed once verified."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbline.data.file_lock import try_lock
from plumbline.schema.errors import DISK_FULL, DiskFullError, UnavailableError

_OPEN_MODE = 0o644


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Convert disk errors to `DiskFullError` or `UnavailableError`."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            hint = "free some space, or name a different cache folder"
            raise DiskFullError(f"no room left: {error.strerror}", where=str(folder), hint=hint) from error
        raise UnavailableError(f"the cache cannot be used: {error.strerror}", where=str(folder)) from error


class Part:
    """Open `.part` file under an exclusive lock, held until closed."""

    def __init__(self, path: Path, final: Path, descriptor: int) -> None:
        self.path = path
        self.final = final
        self._descriptor = descriptor
        self._etag = path.with_suffix(".etag")

    @property
    def size(self) -> int:
        """Return the bytes written so far."""
        return os.fstat(self._descriptor).st_size

    @property
    def etag(self) -> str | None:
        """Return the remote object's etag, if known."""
        try:
            return self._etag.read_text(encoding="utf-8") or None
        except (OSError, UnicodeDecodeError):
            return None

    def keep_etag(self, etag: str) -> None:
        """Store the remote object's etag, to resume later."""
        self._etag.write_text(etag, encoding="utf-8")

    def hashed(self, buffer: memoryview) -> hashlib._Hash:
        """Hash the existing bytes; seek to the end, return the SHA-256 state."""
        hasher = hashlib.sha256()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        while size := os.readv(self._descriptor, [buffer]):
            hasher.update(buffer[:size])
        return hasher

    def write(self, data: memoryview) -> None:
        """Append `data`."""
        while data:
            data = data[os.write(self._descriptor, data) :]

    def reset(self) -> None:
        """Truncate the file, keeping the lock."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._etag.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the file."""
        self._etag.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def commit(self) -> Path:
        """Sync the file to disk, and rename to its final name."""
        # Readable for all before the rename, also after a kill. Writable for the owner until then: a later process that
        # resumes after a kill during the sync opens the file for writing.
        os.fchmod(self._descriptor, _OPEN_MODE)
        os.fsync(self._descriptor)
        self.final.parent.mkdir(parents=True, exist_ok=True)
        # Before the rename, so that a kill in between leaves no file behind: a complete part needs no etag.
        self._etag.unlink(missing_ok=True)
        # The folder is not synced: after a power cut the complete part is hashed again.
        self.path.rename(self.final)
        os.fchmod(self._descriptor, 0o444)
        return self.final


@contextmanager
def claim(path: Path, final: Path, *, wait: Callable[[], None]) -> Iterator[Part | None]:
    """Lock the partial download at `path`; return `None` once `final` exists."""
    while not final.exists():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not try_lock(descriptor):
                wait()
                continue
            if not is_still(descriptor, path):
                continue
            if final.exists():
                # A different process finished in between, and this one created a new empty part.
                path.unlink(missing_ok=True)
                continue
            yield Part(path, final, descriptor)
            return
        finally:
            os.close(descriptor)
    yield None


def is_still(descriptor: int, path: Path) -> bool:
    """Return whether `path` still refers to the locked file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
