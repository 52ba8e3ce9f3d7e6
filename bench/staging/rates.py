"""Download rates of each client, warm and cold: medians of paired ratios.

Ratios above 1 are for the first of a pair, in rate (`paired_ratio`) and in CPU time (`cpu_ratio`).

`python bench/staging/rates.py --out bench/results/staging-warm.json`; needs nginx and `make .venv/peers`
(docs/STAGING.md).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = HERE.parents[1] / ".venv" / "peers"
sys.path[:0] = [str(HERE), str(PEERS)]

from clients import ENVIRONMENT, Clients  # noqa: E402

WARM = (
    "plumbline-s3-1", "plumbline-s3-4", "obstore-s3-1", "obstore-s3-4",
    "plumbline-az-1", "plumbline-az-4", "obstore-az-1", "obstore-az-4", "azuresdk-az-1",
    "http-plain-1", "stager-s3-shm-4", "stager-az-shm-4", "boto3-shm-1", "s5cmd-shm-4", "copy-shm-1",
)  # fmt: skip
VERSIONS = ("boto3", "botocore", "azure-storage-blob", "obstore", "s5cmd")
COLD = ("plumbline-s3-4", "obstore-s3-4", "obstore-s3-1", "plumbline-az-4", "obstore-az-4", "obstore-az-1")


def once_cold(url: str, folder: Path, name: str, verify: bool) -> float:
    """Return the seconds of one run in a fresh process, with imports."""
    command = [sys.executable, __file__, "--child", name, "--url", url, "--folder", str(folder)]
    answer = subprocess.run(
        [*command, *([] if verify else ["--no-verify"])], check=True, capture_output=True, text=True
    )
    return float(answer.stdout)


def child(arguments: argparse.Namespace) -> None:
    """Time one run, starting before its first import."""
    clients = Clients(arguments.url, arguments.folder)
    begin = time.perf_counter()
    moved = clients.make(arguments.child, verify=not arguments.no_verify)()
    seconds = time.perf_counter() - begin
    assert moved == clients.size, (arguments.child, moved)
    print(seconds)


def measure(arguments: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """Return MiB/s of each client and round, in rotated order."""
    from server import serve

    rates: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    load: list[float] = []
    with serve(arguments.shards, arguments.size) as (url, folder):
        clients = Clients(url, folder)
        runs = {} if arguments.cold else {name: clients.make(name, verify=not arguments.no_verify) for name in names}
        for run in runs.values():
            run()
        for number in range(arguments.rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                begin, spent = time.perf_counter(), cpu_seconds()
                if arguments.cold:
                    seconds = once_cold(url, folder, name, not arguments.no_verify)
                else:
                    moved = runs[name]()
                    seconds = time.perf_counter() - begin
                    assert moved == clients.size, (name, moved)
                rates[name].append(clients.size / seconds / 2**20)
                cpu[name].append(cpu_seconds() - spent)
            load.append(os.getloadavg()[0])
            print(f"round {number}: load {load[-1]:.1f}", file=sys.stderr, flush=True)
    return {
        "load_average": load,
        "mib_per_second": rates,
        "cpu_seconds": cpu,
        "median": {name: statistics.median(result) for name, result in rates.items()},
    }


def environment() -> dict[str, Any]:
    """Return command, machine, commit and versions."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    versions = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    machine = f"{os.cpu_count()} cores {model}"
    return {"command": sys.argv, "machine": machine, "commit": head.stdout.strip(), "versions": versions}


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def ratio(rates: dict[str, list[float]], one: str, other: str) -> float | None:
    """Return the median of the rounds' ratios."""
    if one not in rates or other not in rates:
        return None
    return statistics.median(a / b for a, b in zip(rates[one], rates[other], strict=True))


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--url")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if arguments.child:
        child(arguments)
        return
    names = arguments.only or list(COLD if arguments.cold else WARM)
    result = measure(arguments, names)
    pairs = [
        (item, other) for item in names if item.startswith(("plumbline", "stager")) for other in names if item != other
    ]
    result["paired_ratio"] = {
        f"{item} / {other}": ratio(result["mib_per_second"], item, other) for item, other in pairs
    }
    result["cpu_ratio"] = {f"{item} / {other}": ratio(result["cpu_seconds"], other, item) for item, other in pairs}
    result |= environment()
    result |= {key: getattr(arguments, key) for key in ("shards", "size", "rounds", "cold", "no_verify")}
    text = json.dumps(result, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    shown = ("median", "paired_ratio", "cpu_ratio")
    print(json.dumps({name: result[name] for name in shown}, indent=1))


if __name__ == "__main__":
    main()
