"""Local cache of verified objects by digest, shared by all processes.

`objects/ab/abcdef…` verified objects · `parts/` partial downloads, each locked by its writer · `manifests/` manifests
by digest · `current/` each store's last manifest, by etag · `leases/` manifests in use.

Locks are `flock`s on files open for reading and writing (NFSv4 refuses a shared lock on a write-only file); they end
with their process, also after a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from plumbline.data.file_lock import lock, try_lock
from plumbline.data.staging.part import Part, claim, disk_errors
from plumbline.schema.base import read_model
from plumbline.schema.digest import canonical_json, digest_bytes, digest_file
from plumbline.schema.errors import ConfigurationError, DiskFullError, InvalidInputError
from plumbline.schema.manifest import Manifest
from plumbline.schema.variables import variable

_LIMIT_HINT = "set PLUMBLINE_CACHE_MAX to a larger size or share of the disk"
_FULL_HINT = "free some space, or name a different cache folder"
_RESERVE_BYTES = 64 << 20
_MAX_MANIFEST_BYTES = 64 << 20


class Cache:
    """Cache folder of verified objects, with a total size limit."""

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
        """Return the verified object's path, or `None` if absent."""
        path = self._object(sha256)
        try:
            right = path.stat().st_size == size or size is None
        except OSError:
            return None
        if not right:
            # Plumbline never writes to a final name: a file of a different length was damaged from outside.
            self._remove(path)
            return None
        return path

    def _remove(self, path: Path) -> None:
        with disk_errors(self.folder):
            path.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        """Record that an object was used, for least-recently-used eviction."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def manifest(self, sha256: str) -> Manifest | None:
        """Return the cached manifest with this digest; `None` if absent or damaged."""
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
        """Write a manifest to the cache, and return its digest."""
        digest = manifest.digest
        self._write(self.folder / "manifests" / f"{digest}.json", canonical_json(manifest.to_json()))
        return digest

    def current(self, location: str, etag: str) -> Manifest | None:
        """Return the cached manifest of `location` if unchanged, else `None`."""
        try:
            known = json.loads((self.folder / "current" / digest_bytes(location.encode())).read_bytes())
        except (OSError, ValueError):
            return None
        same = isinstance(known, list) and len(known) == 2 and known[0] == etag and isinstance(known[1], str)
        return self.manifest(known[1]) if same else None

    def keep_current(self, location: str, etag: str, digest: str) -> None:
        """Store the current manifest and etag of `location`."""
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
        """Open the object's partial download exclusively; `None` if already complete."""
        path, final = self._places(sha256)
        with disk_errors(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            with claim(path, final, wait=wait) as part:
                yield part

    def part_size(self, sha256: str) -> int:
        """Return the size of an object's partial download."""
        try:
            return self._places(sha256)[0].stat().st_size
        except OSError:
            return 0

    def discard_parts(self, digests: Iterable[str]) -> None:
        """Remove these objects' partial downloads, unless in use."""

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
        """Protect a manifest's objects, or one object, from eviction."""
        with self._open_lock(self.folder / "leases" / digest) as file:
            # Never during an eviction, which would not see this lease.
            with self._eviction(shared=True), disk_errors(self.folder):
                lock(file, shared=True)
            yield

    def _open_lock(self, path: Path) -> IO[bytes]:
        with disk_errors(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a+b")

    @contextmanager
    def _eviction(self, *, shared: bool) -> Iterator[None]:
        with self._open_lock(self.folder / "eviction.lock") as file:
            with disk_errors(self.folder):
                lock(file, shared=shared)
            yield

    def make_room(self, needed: int) -> None:
        """Evict the least recently used objects until `needed` bytes are free."""
        if self.max_bytes is not None and needed > self.max_bytes:
            text = f"{needed} bytes are needed, more than the cache's limit of {self.max_bytes}"
            raise ConfigurationError(text, where=str(self.folder), hint=_LIMIT_HINT)
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.max_bytes is not None or self._missing(needed):
                with self._eviction(shared=False):
                    self._evict(needed)
            if self._missing(needed):
                free = self._free_bytes(self.folder)
                text = f"{needed:,} bytes and a reserve of {_RESERVE_BYTES:,} are needed, {free:,} are free"
                raise DiskFullError(text, where=str(self.folder), hint=_FULL_HINT)

    def _missing(self, needed: int) -> int:
        """Return how many bytes must be freed to store `needed` more."""
        return max(0, needed + _RESERVE_BYTES - self._free_bytes(self.folder)) if needed else 0

    def _evict(self, needed: int) -> None:
        candidates = []
        for path in (self.folder / "objects").glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                candidates.append((status.st_mtime_ns, status.st_size, path))
        over = 0 if self.max_bytes is None else sum(size for _, size, _ in candidates) + needed - self.max_bytes
        if over <= 0 and not self._missing(needed):
            return
        pinned = self._pinned()
        unused = sorted(entry for entry in candidates if entry[2].name not in pinned)
        # If evicting everything would not be enough, evict nothing.
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
                if not try_lock(file):
                    manifest = self.manifest(path.name)
                    pinned.update({path.name} if manifest is None else {entry.sha256 for entry in manifest.files})
        return pinned

    def verify(self) -> list[str]:
        """Hash every object again; remove damaged ones, and return their digests."""
        wrong = []
        with disk_errors(self.folder):
            for path in sorted((self.folder / "objects").glob("*/*")):
                if path.is_symlink() or digest_file(path) != path.name:
                    path.unlink(missing_ok=True)
                    wrong.append(path.name)
        return wrong


VARIABLE = "PLUMBLINE_CACHE_MAX"
_DEFAULT = "80%"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:iB|B)?|(\d+(?:\.\d+)?) ?%", re.IGNORECASE)


def cache_limit(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Return the maximum total size of the cache `folder`, in bytes.

    `PLUMBLINE_CACHE_MAX` is a size (`200GiB`) or a share of the disk's size (`60%`); without it, 80% of the disk.

    Raises:
        ConfigurationError: if the variable is neither.
    """
    text = variable(VARIABLE, _DEFAULT, environment)
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not 0 < float(match[3]) <= 100):
        hint = "give a size such as 200GiB, or a share of the disk such as 60%"
        raise ConfigurationError(f"{text!r} is not a size", where="environment", key=VARIABLE, hint=hint)
    if match[3]:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with disk_errors(folder):
            return int(shutil.disk_usage(existing).total * float(match[3]) / 100)
    return int(float(match[1]) * _UNITS[match[2].upper()])
