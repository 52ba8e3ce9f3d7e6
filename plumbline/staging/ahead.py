"""Staging before a training, for a trainer whose environment has no client of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbline.schema.spec import RunSpec
from plumbline.staging.cache import Cache, cache_limit
from plumbline.staging.order import plan_rows, planned_files
from plumbline.staging.pace import StagingProgress
from plumbline.staging.stager import Stager
from plumbline.stores import open_store


@contextmanager
def staged_files(
    spec: RunSpec, data: str, cache_folder: Path, on_progress: Callable[[StagingProgress], None] | None = None
) -> Iterator[str]:
    """Stage all files of a training; yield the manifest's digest. Until the end the cache keeps the files."""
    cache = Cache(cache_folder, max_bytes=cache_limit(cache_folder))
    with Stager(open_store(data), spec.data.name, cache, on_progress=on_progress) as stager:
        files = planned_files(plan_rows(spec, stager.manifest), stager.manifest)
        stager.start(files)
        for file in files:
            stager.wait(file)
        stager.fetch(spec.model.weights_key, spec.model.weights_sha256)
        yield stager.manifest_sha256
