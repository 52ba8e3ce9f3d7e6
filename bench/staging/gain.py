"""What staging gains: one training whose data comes in four ways over a link of stated speed.

    OMP_NUM_THREADS=1 PYTHONPATH=. python bench/staging/gain.py --out bench/results/staging-gain.json

`batches` asks the store for each batch's bytes when the step needs them: one range of the shard, on one connection.
`staged` downloads and verifies a shard when its first batch is needed, `prefetched` in the background before that, and
`local` has all shards on disk. Each trains BERT-tiny on the same rows, and moves the same bytes; only the wait differs.
The rows have the size of documents, which the link carries and the model cuts: `--row-bytes`. The ways take turns, in
each round a cold cache; the link's time to the first byte and its rate hold for each connection.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from clients import ENVIRONMENT, NAME
from server import publish

from bench.train.workload import Workload, machine
from plumbline.schema.manifest import Manifest
from plumbline.staging import Cache, Stager
from plumbline.stores import Store, open_store
from plumbline.train.context import Context
from plumbline.train.numerics import apply_settings
from plumbline.train.production.choices import Choices, make_engine
from tests.faultserver import FaultServer

WAYS = ("batches", "staged", "prefetched", "local")
Fetch = Callable[[int], None]


def _ranges(store: Store, manifest: Manifest, per_shard: int) -> Fetch:
    buffer = memoryview(bytearray(1 << 20))

    def fetch(step: int) -> None:
        shard, place = manifest.train[step // per_shard], step % per_shard
        size = shard.size // per_shard
        with store.open(f"{NAME}/{shard.key}", offset=place * size, length=size) as reader:
            while reader.readinto(buffer):
                pass

    return fetch


def _shards(stager: Stager, per_shard: int, *, ahead: bool) -> Fetch:
    files = stager.manifest.train
    if ahead:
        stager.start(files)

    def fetch(step: int) -> None:
        if step % per_shard == 0:
            file = files[step // per_shard]
            stager.start([file])
            stager.wait(file)

    return fetch


def train(context: Context, way: str, manifest: Manifest, per_shard: int) -> tuple[float, float]:
    """Return the seconds of the whole training, and those of its waits for data."""
    store = open_store("s3://bucket")
    store.stat(f"{NAME}/manifest.json")
    steps = len(manifest.train) * per_shard
    engine = make_engine(
        context, context.spec, Choices(context.spec.speed), dropout=0.1, steps=steps, ranks=context.ranks
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stager = stack.enter_context(Stager(store, NAME, Cache(folder)))
        if way == "local":
            stager.start(manifest.train)
            for file in manifest.train:
                stager.wait(file)
        began, waited = time.perf_counter(), 0.0
        staged = _shards(stager, per_shard, ahead=way == "prefetched")
        fetch = _ranges(store, manifest, per_shard) if way == "batches" else staged
        for step, batch in enumerate(context.batches(first=0, count=steps, cycle=context.spec.speed.steps)):
            asked = time.perf_counter()
            fetch(step)
            waited += time.perf_counter() - asked
            engine.step(step, batch)
        return time.perf_counter() - began, waited


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--batches-per-shard", type=int, default=8)
    parser.add_argument("--row-bytes", type=int, default=2048)
    parser.add_argument("--mib-per-second", type=float, default=8.0, help="of one connection")
    parser.add_argument("--first-byte-ms", type=float, default=30.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    per_shard = arguments.batches_per_shard
    shard_bytes = arguments.row_bytes * arguments.batch_size * per_shard
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with (
        FaultServer(rate=arguments.mib_per_second * 2**20, latency=arguments.first_byte_ms / 1000) as server,
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
    ):
        manifest = publish(Path(folder), arguments.shards, shard_bytes)
        root = Path(folder) / "www"
        server.objects = {
            f"/{path.relative_to(root)}": path.read_bytes() for path in (root / "bucket").rglob("*") if path.is_file()
        }
        os.environ.update(ENVIRONMENT | {"AWS_ENDPOINT_URL": server.url})
        workload = Workload(Path(folder) / "workload", "tiny", arguments.length)
        speed = {"steps": 40, "precision": "fp32"}
        with workload.context(workload.spec(arguments.batch_size, speed=speed)) as context:
            context.prepare(context.spec.speed.steps)
            apply_settings("fp32", strict=False, part="bench", speed=context.spec.speed)
            train(context, "local", manifest, per_shard)  # the first training compiles kernels and fills caches
            for turn in range(arguments.rounds):
                for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
                    seconds, waited = train(context, way, manifest, per_shard)
                    found[way].append({"seconds": seconds, "waited": waited})
                print({way: round(runs[-1]["seconds"], 2) for way, runs in found.items()}, flush=True)
    medians = {way: statistics.median(run["seconds"] for run in runs) for way, runs in found.items()}
    ratios = {
        way: statistics.median(
            run["seconds"] / local["seconds"] for run, local in zip(runs, found["local"], strict=True)
        )
        for way, runs in found.items()
    }
    result: dict[str, Any] = {
        "machine": machine(), "settings": {key: value for key, value in vars(arguments).items() if key != "out"},
        "shard_bytes": shard_bytes, "runs": found, "median_seconds": medians, "over_local": ratios,
    }  # fmt: skip
    print(json.dumps({"median_seconds": medians, "over_local": ratios}, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
