"""The local cache: objects under their digest, shared by processes and by runs.

`objects/ab/abcdef…` verified objects · `parts/` growing copies, each locked by whoever writes it · `manifests/` the
manifests by digest · `current/` which manifest a store had last, by its etag · `leases/` who uses which manifest now.
Locks are `flock`s on files open for reading and writing (NFSv4 refuses a shared lock on a file open for writing
alone); they end with their process, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from plumbline.digest import canonical_json, digest_bytes, digest_file
from plumbline.errors import ConfigurationError, DiskFullError, InvalidInputError
from plumbline.schema.base import read_model
from plumbline.schema.manifest import Manifest
from plumbline.staging.part import Part, claim, disk_errors

__all__ = ["Cache"]

_LIMIT_HINT = "set PLUMBLINE_CACHE_MAX to a larger size or share of the disk"
_FULL_HINT = "free some space, or name another cache folder"
_RESERVE_BYTES = 64 << 20
_MAX_MANIFEST_BYTES = 64 << 20


class Cache:
    """A folder of verified objects; `max_bytes` is what they may take together."""

    def __init__(
        self, folder: Path, max_bytes: int | None = None, *, free_bytes: Callable[[Path], int] | None = None
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._free_bytes = free_bytes or (lambda path: shutil.disk_usage(path).free)

    def _object(self, sha256: str) -> Path:
        return self.folder / "objects" / sha256[:2] / sha256

    def _places(self, sha256: str) -> tuple[Path, Path]:
        return self.folder / "parts" / f"{sha256}.part", self._object(sha256)

    def path(self, sha256: str, size: int | None = None) -> Path | None:
        """The verified object of this digest, if it is here (and of this size)."""
        path = self._object(sha256)
        try:
            right = path.stat().st_size == size or size is None
        except OSError:
            return None
        if not right:
            # Nothing of ours writes to a final name: a file of another length was damaged from outside.
            self._remove(path)
            return None
        return path

    def _remove(self, path: Path) -> None:
        with disk_errors(self.folder):
            path.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        """Note a use, for eviction."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def manifest(self, sha256: str) -> Manifest | None:
        """The manifest of this digest, if it is here and is what its name says."""
        path = self.folder / "manifests" / f"{sha256}.json"
        with disk_errors(self.folder):
            if not path.is_file():
                return None
        with contextlib.suppress(InvalidInputError):
            manifest = read_model(Manifest, path, max_bytes=_MAX_MANIFEST_BYTES)
            if manifest.digest == sha256:
                return manifest
        self._remove(path)
        return None

    def keep_manifest(self, manifest: Manifest) -> str:
        """Keep a manifest under its digest."""
        digest = manifest.digest
        self._write(self.folder / "manifests" / f"{digest}.json", canonical_json(manifest.to_json()))
        return digest

    def current(self, location: str, etag: str) -> Manifest | None:
        """The manifest that was at `location` when its etag was this one."""
        try:
            known = json.loads((self.folder / "current" / digest_bytes(location.encode())).read_bytes())
        except (OSError, ValueError):
            return None
        same = isinstance(known, list) and len(known) == 2 and known[0] == etag and isinstance(known[1], str)
        return self.manifest(known[1]) if same else None

    def keep_current(self, location: str, etag: str, digest: str) -> None:
        """Remember which manifest is at `location`, as long as its etag is this one."""
        self._write(self.folder / "current" / digest_bytes(location.encode()), canonical_json([etag, digest]))

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        with disk_errors(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def part(self, sha256: str, wait: Callable[[], None]) -> Iterator[Part | None]:
        """The growing copy of an object for us alone, or `None` if the object is here by then."""
        path, final = self._places(sha256)
        with disk_errors(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            with claim(path, final, wait=wait) as part:
                yield part

    def part_size(self, sha256: str) -> int:
        """How much of an object is here already from a broken transfer."""
        try:
            return self._places(sha256)[0].stat().st_size
        except OSError:
            return 0

    def discard_parts(self, digests: Iterable[str]) -> None:
        """Throw away broken transfers of these objects that nobody is at."""

        def held() -> None:
            raise BlockingIOError

        for sha256 in digests:
            path, final = self._places(sha256)
            if path.exists():
                with contextlib.suppress(OSError), claim(path, final, wait=held) as part:
                    if part is not None:
                        part.discard()

    @contextmanager
    def lease(self, digest: str) -> Iterator[None]:
        """Keep a manifest's objects, or a single object, from eviction while this is held."""
        with self._open_lock(self.folder / "leases" / digest) as file:
            # Before or after an eviction, never during one: it would not see this lease.
            with self._eviction(fcntl.LOCK_SH), disk_errors(self.folder):
                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def _open_lock(self, path: Path) -> IO[bytes]:
        with disk_errors(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a+b")

    @contextmanager
    def _eviction(self, lock: int) -> Iterator[None]:
        with self._open_lock(self.folder / "eviction.lock") as file:
            with disk_errors(self.folder):
                fcntl.flock(file, lock)
            yield

    def make_room(self, needed: int) -> None:
        """Have room for `needed` bytes more, before the first of them: evict what was used longest ago."""
        if self.max_bytes is not None and needed > self.max_bytes:
            what = f"{needed} bytes are needed, more than the cache's limit of {self.max_bytes}"
            raise ConfigurationError(what, where=str(self.folder), hint=_LIMIT_HINT)
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.max_bytes is not None or self._missing(needed):
                with self._eviction(fcntl.LOCK_EX):
                    self._evict(needed)
            if self._missing(needed):
                what = f"{needed} bytes are needed, {self._free_bytes(self.folder)} are free"
                raise DiskFullError(what, where=str(self.folder), hint=_FULL_HINT)

    def _missing(self, needed: int) -> int:
        """The bytes that the disk lacks for `needed` more."""
        return max(0, needed + _RESERVE_BYTES - self._free_bytes(self.folder)) if needed else 0

    def _evict(self, needed: int) -> None:
        found = []
        for path in (self.folder / "objects").glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        over = 0 if self.max_bytes is None else sum(size for _, size, _ in found) + needed - self.max_bytes
        if over <= 0 and not self._missing(needed):
            return
        pinned = self._pinned()
        unused = sorted(entry for entry in found if entry[2].name not in pinned)
        # Where all of it would not be enough for the disk, nothing is lost in vain.
        if (missing := self._missing(needed)) <= sum(size for _, size, _ in unused):
            over = max(over, missing)
        for _, size, path in unused:
            if over <= 0:
                return
            path.unlink(missing_ok=True)
            over -= size

    def _pinned(self) -> set[str]:
        pinned: set[str] = set()
        for path in (self.folder / "leases").glob("*"):
            with path.open("a+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    manifest = self.manifest(path.name)
                    pinned.update({path.name} if manifest is None else {entry.sha256 for entry in manifest.files})
        return pinned

    def verify(self) -> list[str]:
        """Hash every object again; the digests of those that were wrong, which are removed."""
        wrong = []
        with disk_errors(self.folder):
            for path in sorted((self.folder / "objects").glob("*/*")):
                if path.is_symlink() or digest_file(path) != path.name:
                    path.unlink(missing_ok=True)
                    wrong.append(path.name)
        return wrong
