"""Publication and verification of datasets and initial weights in a store.

Files have keys that contain their digest, and are never replaced; the manifest is swapped last. So a reader sees the
complete old or new dataset, and an interrupted push can simply be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from plumbline.data.datasets.build import MANIFEST_NAME, read_manifest
from plumbline.data.stores import ObjectMissingError, PreconditionFailedError, Store, ensure_content
from plumbline.data.stores.protocol import digest_object, read_bytes, read_object
from plumbline.schema.base import read_model
from plumbline.schema.digest import canonical_json, digest_bytes, digest_file
from plumbline.schema.errors import ConfigurationError, CorruptDataError, InvalidInputError
from plumbline.schema.manifest import DataFile, Manifest

UploadProgress = Callable[[int, int, str], None]
"""Callback after each file: number done, total number, key."""

_CONNECTIONS = 4
_MAX_MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Published:
    """Result of publishing a dataset."""

    manifest_sha256: str
    written: int
    skipped: int
    bytes_written: int
    replaced: str | None
    """Digest of the replaced manifest, if different; empty if it was unreadable."""


def publish(folder: Path, store: Store, name: str = "", progress: UploadProgress | None = None) -> Published:
    """Upload the dataset in `folder` to `store`, and verify written files."""
    manifest = read_manifest(folder)
    if name and name != manifest.name:
        why = f"contains the dataset {manifest.name!r}, not {name!r}"
        raise ConfigurationError(why, where=str(folder), hint="build it under that name")
    _check_folder(folder, manifest)
    current, etag = _current(store, manifest.name)
    listed = {file.key: file for file in current.files} if current else {}
    written = 0
    bytes_written = 0
    with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="publish") as pool:
        pending = {
            pool.submit(_send, store, folder, manifest.name, file, listed.get(file.key)): file
            for file in manifest.files
        }
        try:
            for done, future in enumerate(as_completed(pending), start=1):
                file = pending[future]
                if future.result():
                    written += 1
                    bytes_written += file.size
                if progress:
                    progress(done, len(pending), file.key)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    data = canonical_json(manifest.to_json())
    if current != manifest:
        _swap(store, f"{manifest.name}/{MANIFEST_NAME}", data, etag)
    same = current is not None and current.digest == manifest.digest
    replaced = None if same or etag is None else current.digest if current else ""
    return Published(manifest.digest, written, len(pending) - written, bytes_written, replaced)


def _check_folder(folder: Path, manifest: Manifest) -> None:
    """Raise unless all local files match the manifest."""
    for file in manifest.files:
        path = folder / file.key
        if not path.is_file() or path.stat().st_size != file.size or digest_file(path) != file.sha256:
            raise CorruptDataError("does not match the manifest", where=str(path), hint="build the dataset again")


def _send(store: Store, folder: Path, name: str, file: DataFile, listed: DataFile | None) -> bool:
    """Upload a file; return whether anything was written."""
    key = f"{name}/{file.key}"
    if listed is not None and listed.sha256 == file.sha256:
        # The file was verified when its manifest was published.
        try:
            size = store.stat(key).size
        except ObjectMissingError:
            size = None
        if size == file.size:
            return False
    return ensure_content(store, key, folder / file.key, file.sha256)


def _current(store: Store, name: str) -> tuple[Manifest | None, str | None]:
    """Return the published manifest and etag; an unreadable manifest counts as absent."""
    try:
        data, info = read_object(store, f"{name}/{MANIFEST_NAME}", max_bytes=_MAX_MANIFEST_BYTES)
    except ObjectMissingError:
        return None, None
    try:
        return read_model(Manifest, data, where=store.url), info.etag
    except InvalidInputError:
        return None, info.etag


def _swap(store: Store, key: str, data: bytes, etag: str | None) -> None:
    try:
        store.swap(key, data, if_match=etag)
    except PreconditionFailedError as error:
        why = "a different manifest was published at the same time"
        raise InvalidInputError(why, where=store.url, key=key, hint="push again once the other push is done") from error
    if digest_bytes(read_object(store, key, max_bytes=_MAX_MANIFEST_BYTES)[0]) != digest_bytes(data):
        raise CorruptDataError("different bytes are read back than were written", where=store.url, key=key)


def weights_key(sha256: str) -> str:
    """Return the object key of initial weights below a data URL."""
    return f"weights/{sha256}.safetensors"


def publish_weights(path: Path, store: Store, sha256: str) -> bool:
    """Upload initial weights to `store`; return whether anything was written."""
    return publish_file(path, store, weights_key(sha256), sha256)


def publish_file(path: Path, store: Store, key: str, sha256: str) -> bool:
    """Upload a file to an object that is named by its digest; return whether anything was written."""
    if digest_file(path) != sha256:
        raise CorruptDataError("does not match its digest", where=str(path))
    try:
        if store.stat(key).size == path.stat().st_size:
            return False
    except ObjectMissingError:
        pass
    return ensure_content(store, key, path, sha256)


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification: bytes read, and problems by key."""

    manifest: Manifest
    bytes_read: int
    problems: dict[str, str]


def verify_dataset(store: Store, name: str) -> Verified:
    """Read every object of the dataset once, and compare with the manifest.

    An unavailable store raises its error: the dataset is not judged then.
    """
    key = f"{name}/{MANIFEST_NAME}"
    manifest = read_model(Manifest, read_bytes(store, key), where=f"{store.url}/{key}")
    if manifest.name != name:
        raise InvalidInputError(f"is the manifest of {manifest.name!r}", where=f"{store.url}/{key}", key="name")
    problems: dict[str, str] = {}
    total = 0
    for file in manifest.files:
        try:
            size, sha256 = digest_object(store, f"{name}/{file.key}")
        except InvalidInputError as error:
            problems[file.key] = error.what
            continue
        total += size
        if size != file.size:
            problems[file.key] = f"is {size} bytes long, the manifest says {file.size}"
        elif sha256 != file.sha256:
            problems[file.key] = "does not match the digest in the manifest"
    return Verified(manifest, total, problems)
