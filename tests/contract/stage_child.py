"""Staging of one dataset, in a forked process."""

from __future__ import annotations

import json
import os
import resource
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from plumbline.data.staging import Cache, striping
from plumbline.data.stores import open_store
from plumbline.schema.errors import PlumblineError
from tests.contract.datasets import stage


def main(url: str, cache: str, connections: str, max_file_bytes: str = "") -> int:
    """Stage all files, the first in stripes; print the cost."""
    striping.SMALLEST_BYTES = 50_000
    if max_file_bytes:
        sys.dont_write_bytecode = True  # half a compiled module would break everybody
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_file_bytes), int(max_file_bytes)))
    try:
        moved = stage(open_store(url), Cache(Path(cache)), connections=int(connections))
        sys.stdout.write(json.dumps({"moved": moved}))
    except PlumblineError as error:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "what": str(error)}))
        return int(error.exit_code)
    return 0


def run(environment: dict[str, str], arguments: list[str], output: Connection) -> None:
    """Stage in this environment, with stdout and stderr in `output`."""
    os.environ.clear()
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    raise SystemExit(main(*arguments))
