"""Folder as an object store: shared file system, laptop, air-gapped cluster.

Objects appear atomically: written to a temporary file, synced, then linked (create) or renamed (swap).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from pathlib import Path

from plumbline.data.file_lock import lock
from plumbline.data.stores.opening import Timeouts
from plumbline.data.stores.protocol import (
    FolderMissingError,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
    checked_key,
)
from plumbline.schema.errors import (
    DISK_FULL,
    AccessError,
    ConfigurationError,
    DiskFullError,
    InvalidInputError,
    PlumblineError,
    Refusal,
)
from plumbline.schema.store_url import PRIVATE, StoreAddress

_OWN_FOLDER = ".store"
_HINT = "use the URL of a folder that exists or can be created"
_MOUNT_HINT = "mount it, or create it by writing the first object"
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_NO_FOLDER = _MISSING | {errno.EEXIST}
_TRIES = 10
_IN_USE = {errno.ENOTEMPTY, errno.EEXIST}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


class _Reader:
    def __init__(
        self, info: ObjectInfo, file: FileIO, remaining: int, errors: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self.info = info
        self._file = file
        self._remaining = remaining
        self._errors = errors

    def readinto(self, buffer: memoryview, /) -> int:
        with self._errors(self.info.key):
            size = self._file.readinto(buffer[: self._remaining])
        self._remaining -= size
        if not size and self._remaining:
            raise StoreUnavailableError("the file became shorter while it was read")
        return size


class FileStore:
    """Objects as files below `root`."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self._root = root.absolute()

    def _path(self, key: str) -> Path:
        path = self._root / checked_key(key, self.url)
        if key.split("/", 1)[0] == _OWN_FOLDER:
            raise InvalidInputError(f"{_OWN_FOLDER} is reserved for the store", where=self.url, key=key)
        # `Path.resolve` raises `RuntimeError` for a ring of links.
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._root)):
            raise InvalidInputError("is a link that leaves the store", where=self.url, key=key)
        return path

    def _is_folder(self) -> bool:
        return os.path.isdir(self._root)  # noqa: PTH112 - `Path.is_dir` raises for a share that went away

    def _error(self, error: OSError, key: str) -> PlumblineError:
        if error.errno in DISK_FULL:
            return DiskFullError("no room left on the store's disk", where=self.url, key=key)
        if error.errno in _DENIED:
            text = f"refused: {error.strerror}"
            return AccessError(text, where=self.url, key=key, refusal=Refusal.PERMISSIONS)
        if error.errno == errno.ENOTDIR and not self._is_folder():
            return ConfigurationError("is not a folder", where=self.url, hint=_HINT)
        if error.errno == errno.ENOENT and not self._is_folder():
            return FolderMissingError("the folder does not exist", where=self.url, hint=_MOUNT_HINT)
        if error.errno in _MISSING:
            return ObjectMissingError("no such object", where=self.url, key=key)
        return StoreUnavailableError(str(error.strerror), where=self.url)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Convert the errors of file reads."""
        try:
            yield
        except OSError as error:
            raise self._error(error, key) from error

    def _unwritten(self, error: OSError, key: str) -> PlumblineError:
        """Convert file write errors; a missing folder is a configuration error."""
        if error.errno in _NO_FOLDER:
            text = f"the store's folder cannot be created: {error.strerror}"
            return ConfigurationError(text, where=self.url, key=key, hint=_HINT)
        return self._error(error, key)

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[_Reader]:
        """Open an object for reading from `offset`."""
        path = self._path(key)
        with self._errors(key):
            file = path.open("rb", buffering=0)
        with file:
            with self._errors(key):
                info = _info(key, os.fstat(file.fileno()))
                file.seek(offset)
            if if_match is not None and info.etag != if_match:
                raise PreconditionFailedError("the object has changed", where=self.url, key=key)
            rest = max(0, info.size - offset)
            yield _Reader(info, file, rest if length is None else min(rest, length), self._errors)

    def stat(self, key: str) -> ObjectInfo:
        """Return an object's size and etag."""
        path = self._path(key)
        with self._errors(key):
            if path.is_dir():
                raise ObjectMissingError("no such object", where=self.url, key=key)
            return _info(key, path.stat())

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
        start = self._root / prefix.rpartition("/")[0] if "/" in prefix else self._root
        keys = []

        def refused(error: OSError) -> None:
            # A missing folder means no objects; every other error must not look like an empty store.
            if not isinstance(converted := self._error(error, prefix), ObjectMissingError):
                raise converted from error

        for folder, folders, names in os.walk(start, onerror=refused):
            if Path(folder) == self._root:
                folders[:] = [name for name in folders if name != _OWN_FOLDER]
            keys += [(Path(folder) / name).relative_to(self._root).as_posix() for name in names]
        for key in sorted(keys):
            if key.startswith(prefix):
                with contextlib.suppress(ObjectMissingError):
                    yield self.stat(key)

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object by hard link, which never replaces a file."""
        path = self._path(key)
        try:
            with self._beside(key, data) as temporary:
                if not _link(temporary, path):
                    raise ObjectExistsError("exists already", where=self.url, key=key)
                return _info(key, path.stat())
        except OSError as error:
            raise self._unwritten(error, key) from error

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object if its etag is `if_match`, under the store's lock."""
        path = self._path(key)
        try:
            with self._locked(), self._beside(key, data) as temporary:
                current = _info(key, path.stat()).etag if path.exists() else None
                if current != if_match:
                    raise PreconditionFailedError("the object has changed", where=self.url, key=key)
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.replace(path)
                return _info(key, path.stat())
        except OSError as error:
            raise self._unwritten(error, key) from error

    def delete(self, key: str) -> None:
        """Delete an object, if it exists, and empty parent folders."""
        path = self._path(key)
        try:
            with self._locked():
                path.unlink(missing_ok=True)
                for folder in path.parents:
                    if folder == self._root or not folder.is_relative_to(self._root):
                        return
                    folder.rmdir()
        except OSError as error:
            if error.errno not in _IN_USE | _MISSING:
                raise self._error(error, key) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        own = self._root / _OWN_FOLDER
        own.mkdir(parents=True, exist_ok=True)
        with (own / "lock").open("a+") as file:
            lock(file)
            yield

    @contextmanager
    def _beside(self, key: str, data: bytes | Path) -> Iterator[Path]:
        if isinstance(data, Path) and not data.is_file():
            raise InvalidInputError("no such file", where=str(data))
        own = self._root / _OWN_FOLDER
        own.mkdir(parents=True, exist_ok=True)
        temporary = own / f"{secrets.token_hex(8)}.part"
        try:
            mode = 0o600 if key.startswith(PRIVATE) else 0o666
            with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> bool:
    """Hard-link `source` to `target`; return `False` if the target exists."""
    for _ in range(_TRIES):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        except FileNotFoundError:
            continue
        return True
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}")


def open_url(url: str, address: StoreAddress, _waits: Timeouts) -> FileStore:
    """Open the store at a `file://` URL."""
    return FileStore(url, Path(address.prefix))
