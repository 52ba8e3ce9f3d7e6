"""Where a training's files come from: staged from the platform's store, or out of the local cache."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.schema.manifest import DataFile, Manifest
from plumbline.schema.spec import RunSpec

if TYPE_CHECKING:
    from plumbline.staging import Progress

__all__ = ["Source", "open_source", "waited"]

_MOST_REASONS = 5


class Source(Protocol):
    """A dataset's files, verified; `plumbline.staging.Stager` is one."""

    manifest: Manifest
    manifest_sha256: str
    waits: list[tuple[str, float, str]]
    bytes_moved: int

    def start(self, files: Sequence[DataFile]) -> None:
        """Begin to bring `files`, in that order."""

    def wait(self, file: DataFile) -> Path:
        """The file on disk, once it is there and verified."""

    def fetch(self, key: str, sha256: str) -> Path:
        """One object outside the manifest."""


class _Cached:
    """Files that an earlier training, or a person, has put into the cache."""

    def __init__(self, cache: object, manifest: Manifest) -> None:
        self._cache = cache
        self.manifest, self.manifest_sha256 = manifest, manifest.digest
        self.waits: list[tuple[str, float, str]] = []
        self.bytes_moved = 0

    def start(self, files: Sequence[DataFile]) -> None:
        """Nothing to bring: everything is here, or is missed by `wait`."""

    def wait(self, file: DataFile) -> Path:
        return self.fetch(file.key, file.sha256)

    def fetch(self, key: str, sha256: str) -> Path:
        path: Path | None = self._cache.path(sha256)  # type: ignore[attr-defined]
        if path is None:
            raise InvalidInputError(
                f"{sha256[:12]} is not in the cache", where=key, hint="name the store that holds it with --data"
            )
        return path


def waited(source: Source) -> dict[str, float]:
    """How long the training waited for its files: in all, and for what, the longest of it."""
    reasons: dict[str, float] = {}
    for _, seconds, why in source.waits:
        reasons[why] = reasons.get(why, 0.0) + seconds
    longest = sorted(reasons, key=reasons.__getitem__, reverse=True)[:_MOST_REASONS]
    return {"data_wait": sum(reasons.values()), **{f"data_wait: {why}": reasons[why] for why in longest}}


def _tell(progress: Progress) -> None:
    event = {
        "event": "progress", "part": "staging", "step": progress.files_done, "steps": progress.files,
        "words": progress.words,
    }  # fmt: skip
    sys.stderr.write(json.dumps(event) + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def open_source(spec: RunSpec, data: str | None, cache_folder: Path, *, tell: bool = False) -> Iterator[Source]:
    """The dataset that `spec` names, as the platform has it now; without a store, as the spec's digest says."""
    from plumbline.staging import Cache, Stager, cache_limit

    cache = Cache(cache_folder, max_bytes=cache_limit(cache_folder))
    if data is not None:
        from plumbline.stores import open_store

        with Stager(open_store(data), spec.data.name, cache, on_progress=_tell if tell else None) as stager:
            yield stager
        return
    manifest = cache.manifest(spec.data.manifest_sha256)
    if manifest is None:
        raise ConfigurationError(
            f"holds no manifest {spec.data.manifest_sha256[:12]}",
            where=str(cache_folder),
            key=spec.data.name,
            hint="name the store that holds the dataset with --data URL",
        )
    yield _Cached(cache, manifest)
