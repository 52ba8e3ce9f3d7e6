"""Download rates of each client, warm and cold: medians of paired ratios, above 1 for the first of a pair.

`PYTHONPATH=.:.venv/peers python -m bench.staging.rates --out FILE`; needs nginx and `make .venv/peers`
(docs/STAGING.md).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.staging.clients import ENVIRONMENT, Clients, Run

WARM = (
    "plumbline-s3-1", "plumbline-s3-4", "obstore-s3-1", "obstore-s3-4", "plumbline-az-1", "plumbline-az-4",
    "obstore-az-1", "obstore-az-4", "stager-s3-shm-4", "stager-az-shm-4", "boto3-shm-1", "s5cmd-shm-4",
)  # fmt: skip
COLD = ("plumbline-s3-4", "obstore-s3-4", "obstore-s3-1", "plumbline-az-4", "obstore-az-4", "obstore-az-1")
VERSIONS = ("boto3", "botocore", "azure-storage-blob", "obstore", "s5cmd")


def once_cold(url: str, folder: Path, name: str) -> float:
    """Return the seconds of one run in a fresh process, with imports."""
    command = [sys.executable, "-m", "bench.staging.rates", "--child", name, "--url", url, "--folder", str(folder)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def once(run: Run, size: int) -> float:
    """Return the seconds of one run."""
    begin = time.perf_counter()
    moved = run()
    assert moved == size, moved
    return time.perf_counter() - begin


def measure(arguments: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """Return MiB/s of each client and round, in rotated order."""
    from bench.staging.server import serve

    rates: dict[str, list[float]] = {name: [] for name in names}
    load: list[float] = []
    with serve(arguments.shards, arguments.size) as (url, folder):
        clients = Clients(url, folder)
        runs = {} if arguments.cold else {name: clients.make(name) for name in names}
        for run in runs.values():
            run()
        for number in range(arguments.rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                seconds = once_cold(url, folder, name) if arguments.cold else once(runs[name], clients.size)
                rates[name].append(clients.size / seconds / 2**20)
            load.append(os.getloadavg()[0])
            print(f"round {number}: load {load[-1]:.1f}", file=sys.stderr, flush=True)
    median = {name: statistics.median(result) for name, result in rates.items()}
    ratios = {
        f"{name} / {other}": statistics.median(a / b for a, b in zip(rates[name], rates[other], strict=True))
        for name in names if name.startswith(("plumbline", "stager")) for other in names if name != other
    }  # fmt: skip
    return {"load_average": load, "mib_per_second": rates, "median": median, "paired_ratio": ratios}


def environment() -> dict[str, Any]:
    """Return command, machine, commit and versions."""
    from bench.faults.results import commit, machine

    versions = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"command": sys.argv, "machine": machine(), "commit": commit(), "versions": versions}


def main() -> None:
    """Measure, and write the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if arguments.child:
        # The first import of a client is a part of its run.
        clients = Clients(arguments.url, arguments.folder)
        print(once(lambda: clients.make(arguments.child)(), clients.size))  # noqa: PLW0108
        return
    result = measure(arguments, arguments.only or list(COLD if arguments.cold else WARM)) | environment()
    result |= {key: getattr(arguments, key) for key in ("shards", "size", "rounds", "cold")}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("median", "paired_ratio")}, indent=1))


if __name__ == "__main__":
    main()
