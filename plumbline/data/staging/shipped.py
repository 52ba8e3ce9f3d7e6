"""Files that a command is given: objects by digest, and all files of a dataset, from a store to the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from plumbline.data.staging.cache import Cache, cache_limit
from plumbline.data.staging.pace import StagingProgress
from plumbline.data.staging.stager import Stager
from plumbline.data.staging.striping import Connections
from plumbline.data.staging.transfer import Transfer
from plumbline.data.stores import open_store
from plumbline.schema.manifest import DataFile


def file_key(sha256: str) -> str:
    """Return the object key of a command's file below a data URL."""
    return f"files/{sha256}"


@contextmanager
def shipped_files(data: str, digests: Iterable[str], cache_folder: Path) -> Iterator[dict[str, Path]]:
    """Yield the files' paths in the cache by digest, each verified. Until the end the cache keeps them."""
    cache, store = Cache(cache_folder, max_bytes=cache_limit(cache_folder)), open_store(data)
    transfer = Transfer(
        store, cache, Connections(1), threading.Event(), on_bytes=lambda _: None, on_trouble=lambda *_: None
    )
    found: dict[str, Path] = {}
    with ExitStack() as leases:
        for sha256 in dict.fromkeys(digests):
            leases.enter_context(cache.lease(sha256))
            path = cache.path(sha256)
            if path is None:
                file = DataFile(key=file_key(sha256), size=store.stat(file_key(sha256)).size, sha256=sha256)
                cache.make_room(file.size)
                path = transfer.fetch(file, file.key)
            found[sha256] = path
        yield found


@contextmanager
def shipped_dataset(
    data: str, name: str, cache_folder: Path, on_progress: Callable[[StagingProgress], None] | None = None
) -> Iterator[tuple[str, dict[str, Path]]]:
    """Stage a whole dataset; yield its manifest's digest, and its files by their keys."""
    cache = Cache(cache_folder, max_bytes=cache_limit(cache_folder))
    with Stager(open_store(data), name, cache, on_progress=on_progress) as stager:
        files = list(stager.manifest.files)
        stager.start(files)
        yield stager.manifest_sha256, {file.key: stager.wait(file) for file in files}
