"""Waits of training over a slow link, compared with downloading everything first.

`python bench/staging/link.py --out bench/results/staging-link.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from clients import ENVIRONMENT, NAME
from server import publish

from plumbline.staging import Cache, Stager
from plumbline.stores import open_store
from tests.faultserver import FaultServer

RATE = 8 << 20


def stage(connections: int, window: int, compute_seconds: float) -> tuple[float, list[float], float]:
    """Return seconds to the first shard, all waits, and total seconds."""
    store = open_store("s3://bucket")
    store.stat(f"{NAME}/manifest.json")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with Stager(store, NAME, Cache(Path(folder)), connections=connections, window=window) as stager:
            stager.start(stager.manifest.train)
            first = 0.0
            for file in stager.manifest.train:
                stager.wait(file)
                first = first or time.perf_counter() - begin
                time.sleep(compute_seconds)
            return first, [seconds for _, seconds, _ in stager.waits], time.perf_counter() - begin


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=128)
    parser.add_argument("--size", type=int, default=4 << 20)
    parser.add_argument("--cases", nargs="*", default=["4x4", "4x8", "8x8", "4x1"], help="CONNECTIONSxWINDOW")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"shards": arguments.shards, "size": arguments.size, "rate": RATE, "cases": []}
    # nginx's own limit lets the first second of every answer pass; the tests' server paces each 64 KiB.
    with FaultServer(rate=RATE) as server, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        publish(Path(folder), arguments.shards, arguments.size)
        root = Path(folder) / "www"
        server.objects = {
            f"/{path.relative_to(root)}": path.read_bytes() for path in (root / "bucket").rglob("*") if path.is_file()
        }
        os.environ.update(ENVIRONMENT | {"AWS_ENDPOINT_URL": server.url})
        item = arguments.size / RATE
        for connections, window in (map(int, case.split("x")) for case in arguments.cases):
            _, _, whole = stage(connections, arguments.shards, 0.0)
            # Training that is a quarter slower than the link: what it waits for is the stager's fault.
            first, waits, total = stage(connections, window, 1.25 * item / connections)
            case = {
                "connections": connections, "window": window, "one_shard_seconds": item, "first_shard_seconds": first,
                "first_over_one": first / item, "whole_download_seconds": whole, "waited_seconds": sum(waits),
                "waited_over_whole": sum(waits) / whole, "first_wait_over_whole": waits[0] / whole,
                "total_seconds": total, "load_average": os.getloadavg()[0],
            }  # fmt: skip
            result["cases"].append(case)
            print(json.dumps(case), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
