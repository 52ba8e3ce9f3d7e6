"""Source of a training's dataset files: a store or the local cache."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.manifest import DataFile, Manifest
from plumbline.schema.spec import RunSpec

if TYPE_CHECKING:
    from plumbline.data.staging import StagingProgress


_MOST_REASONS = 5


class DataSource(Protocol):
    """Interface to a dataset's verified files; `plumbline.data.staging.Stager` implements it."""

    manifest: Manifest
    manifest_sha256: str
    waits: list[tuple[str, float, str]]
    bytes_moved: int

    def start(self, files: Sequence[DataFile]) -> None:
        """Start staging `files`, in this order."""

    def wait(self, file: DataFile) -> Path:
        """Wait until a file is staged and verified; return its local path."""

    def fetch(self, key: str, sha256: str) -> Path:
        """Return the local path of an object outside the manifest."""


class _Cached:
    """Source of files that are all in the local cache."""

    def __init__(self, cache: object, manifest: Manifest) -> None:
        self._cache = cache
        self.manifest, self.manifest_sha256 = manifest, manifest.digest
        self.waits: list[tuple[str, float, str]] = []
        self.bytes_moved = 0

    def start(self, files: Sequence[DataFile]) -> None:
        """Do nothing: `wait` reports missing files."""

    def wait(self, file: DataFile) -> Path:
        return self.fetch(file.key, file.sha256)

    def fetch(self, key: str, sha256: str) -> Path:
        path: Path | None = self._cache.path(sha256)  # type: ignore[attr-defined]
        if path is None:
            raise InvalidInputError(
                f"{sha256[:12]} is not in the cache", where=key, hint="name the store with this file: --data URL"
            )
        return path


def waited(source: DataSource) -> dict[str, float]:
    """Return the seconds spent waiting for files, total and by reason."""
    reasons: dict[str, float] = {}
    for _, seconds, why in source.waits:
        reasons[why] = reasons.get(why, 0.0) + seconds
    longest = sorted(reasons, key=reasons.__getitem__, reverse=True)[:_MOST_REASONS]
    return {"data_wait": sum(reasons.values()), **{f"data_wait: {why}": reasons[why] for why in longest}}


def _emit(progress: StagingProgress) -> None:
    sys.stderr.write(json.dumps(progress.event) + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def open_source(
    spec: RunSpec, data: str | None, cache_folder: Path, *, manifest_sha256: str = "", emit_progress: bool = False
) -> Iterator[DataSource]:
    """Open the spec's dataset, from a store or the local cache."""
    from plumbline.data.staging import Cache, Stager, cache_limit

    cache = Cache(cache_folder, max_bytes=cache_limit(cache_folder))
    if data is not None:
        from plumbline.data.stores import open_store

        with Stager(open_store(data), spec.data.name, cache, on_progress=_emit if emit_progress else None) as stager:
            yield stager
        return
    sha256 = manifest_sha256 or spec.data.manifest_sha256
    manifest = cache.manifest(sha256)
    if manifest is None:
        raise ConfigurationError(
            f"does not contain the manifest {sha256[:12]}",
            where=str(cache_folder),
            key=spec.data.name,
            hint="name the store with the dataset: --data URL",
        )
    yield _Cached(cache, manifest)
