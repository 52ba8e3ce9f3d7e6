"""Process whose disk fills during staging: `full_disk_child.py URL FOLDER bytes|files LEFT`.

FOLDER is a small file system of its own. Something else takes all of its room, or all of its files, but LEFT.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from plumbline.data.staging import Cache, Stager, striping
from plumbline.data.stores import open_store
from plumbline.schema.errors import PlumblineError
from tests.contract.datasets import temporary_files


def stage(url: str, folder: Path, kind: str, left: int) -> int:
    """Stage all files, on a filling disk if `kind` says so; return the bytes moved."""
    with Stager(open_store(url), "reviews", Cache(folder / "cache"), connections=4) as stager:
        stager.start(stager.manifest.files)
        if kind:
            fill(folder, kind, left)
        for file in stager.manifest.files:
            stager.wait(file)
        return stager.bytes_moved


def fill(folder: Path, kind: str, left: int) -> None:
    """Fill the disk except for so many bytes or files."""
    other = folder / "other"
    other.mkdir()
    status = os.statvfs(folder)
    with contextlib.suppress(OSError):
        if kind == "files":
            for number in range(status.f_favail - 1 - left):
                (other / str(number)).touch()
            return
        rest = status.f_bavail * status.f_frsize - left
        with (other / "file").open("wb", buffering=0) as file:
            while rest > 0:
                rest -= file.write(bytes(min(rest, 1 << 20)))


def main(url: str, folder: str, kind: str, left: str) -> None:
    """Stage on the filling disk, inspect the rest, free space, and stage again."""
    striping.SMALLEST_BYTES = 50_000
    root = Path(folder)
    answer: dict[str, object] = {}
    try:
        stage(url, root, kind, int(left))
    except PlumblineError as error:
        answer = {"error": type(error).__name__, "what": str(error), "code": int(error.exit_code)}
    answer["temporary"] = list(map(str, temporary_files(root)))
    answer["wrong"] = Cache(root / "cache").verify()
    kept = sum(path.stat().st_size for path in root.glob("cache/objects/*/*"))
    shutil.rmtree(root / "other")
    answer["all"] = kept + stage(url, root, "", 0)
    answer["wrong_later"] = Cache(root / "cache").verify()
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
