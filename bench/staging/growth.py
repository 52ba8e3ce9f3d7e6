"""Growth of staging from 1 to 10,000 shards: time and memory, cold and warm.

`python bench/staging/growth.py --out bench/results/staging-growth.json`; needs nginx. Each case is a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from clients import ENVIRONMENT, NAME
from server import serve

from plumbline.staging import Cache, Stager
from plumbline.stores import open_store

SMALL, LARGE = 64 << 10, 32 << 20
CASES = ((1, SMALL), (10, SMALL), (100, SMALL), (1000, SMALL), (10_000, SMALL), (4, LARGE), (64, LARGE))


def child(folder: str, connections: int) -> None:
    """Stage once; print seconds, bytes moved, and memory growth."""
    store = open_store("s3://bucket")
    store.stat(f"{NAME}/manifest.json")
    before = peak_mib()
    begin = time.perf_counter()
    with Stager(store, NAME, Cache(Path(folder)), connections=connections) as stager:
        stager.start(stager.manifest.train)
        for file in stager.manifest.train:
            stager.wait(file)
        seconds = time.perf_counter() - begin
        grown = peak_mib() - before
        print(json.dumps({"seconds": seconds, "moved": stager.bytes_moved, "memory_grown_mib": grown}))


def peak_mib() -> float:
    """Return this program's peak memory, without its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--child")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", nargs="*", type=int, default=range(len(CASES)))
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if arguments.child:
        child(arguments.child, arguments.connections)
        return
    result: list[dict[str, Any]] = []
    for shards, size in (CASES[number] for number in arguments.cases):
        with serve(shards, size) as (url, _), tempfile.TemporaryDirectory() as folder:
            os.environ["AWS_ENDPOINT_URL"] = url
            command = [sys.executable, __file__, "--child", folder, "--connections", str(arguments.connections)]
            cold, warm = (
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2)
            )
            result.append(
                {"shards": shards, "size": size, "cold": cold, "warm": warm, "load_average": os.getloadavg()[0]}
            )
            print(json.dumps(result[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"connections": arguments.connections, "cases": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
