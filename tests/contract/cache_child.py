"""A process that stages datasets into a shared cache of limited size: `cache_child.py URL CACHE MAX_BYTES NAME...`.

Each is held until a line comes in on stdin (or stdin ends), and then has to be there still, every byte of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from plumbline.data.staging import Cache, Stager
from plumbline.data.stores import open_store
from plumbline.schema.digest import digest_file


def main(url: str, folder: str, max_bytes: str, *names: str) -> None:
    """Stage one dataset after the next."""
    for name in names:
        with Stager(open_store(url), name, Cache(Path(folder), max_bytes=int(max_bytes))) as stager:
            stager.start(stager.manifest.files)
            paths = {file.sha256: stager.wait(file) for file in stager.manifest.files}
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            sys.stdin.readline()
            for sha256, path in [*paths.items()] * 3:
                if digest_file(path) != sha256:
                    raise SystemExit(f"{path} is another")


if __name__ == "__main__":
    main(*sys.argv[1:])
