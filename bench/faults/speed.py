"""Speed faults: a baseline, a slow run, its rerun, and the named cause."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.faults.bench import Bench, Result
from bench.faults.catalogue import Entry
from bench.faults.trainer import Side, Trainer
from plumbline.judge import compare, needs_rerun
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.suite import Gates

__all__ = ["SPEED", "run_speed"]

_GATES = Gates(throughput_drop=0.10)


def _entries(expected: str, names: str) -> list[Entry]:
    return [
        Entry(name.replace("_", "-"), "speed", expected, inject=f"speed.{name}", workload="speed")
        for name in names.split()
    ]


SPEED: tuple[Entry, ...] = (
    *_entries("loader", "slow_storage slow_collate"),
    *_entries("transfer", "slow_transfer"),
    *_entries("software", "slower_kernel slower_optimizer"),
    *_entries("contention", "cpu_hog memory_pressure"),
    *_entries("slow-device", "slow_device"),
    *_entries("throttling", "cpu_quota thermal_throttle"),
    Entry("as-fast-as-before", "speed", "", workload="speed"),
)


def _as_built(record: LoadedRecord, entry: Entry) -> LoadedRecord:
    """Return the record with a different build of torch, which is how slower software arrives."""
    if entry.expected != "software":
        return record
    fingerprint = record.record.fingerprint
    packages = fingerprint.packages | {"torch": f"{fingerprint.packages.get('torch', '')}+slower"}
    changed = record.record.replace(fingerprint=fingerprint.replace(packages=packages))
    return LoadedRecord(changed, record.folder, record.arrays)


def _judged(trainer: Trainer, side: Side, baseline: LoadedRecord, entry: Entry, seed: int) -> Result:
    slow = Side(side.spec, side.data, "left", inject=entry.inject)
    label = f"{entry.name}-{seed}"
    started = time.perf_counter()
    candidate = trainer.train(slow, label)
    if candidate is None:
        return Result(entry.name, entry.family, seed, entry.expected, "invalid", detected=False, why="no record")
    candidate = _as_built(candidate, entry)
    before = time.perf_counter()
    judgement = compare(baseline, candidate, _GATES)
    judge_seconds, experiments = time.perf_counter() - before, 0
    if needs_rerun(judgement):
        rerun = trainer.train(slow, f"{label}-again")
        experiments = 1
        if rerun is not None:
            judgement = compare(baseline, candidate, _GATES, confirms=rerun.record.evidence.speed)
    causes = judgement.causes
    return Result(
        entry.name,
        entry.family,
        seed,
        entry.expected,
        judgement.verdict,
        detected=judgement.verdict == "drift",
        named=[cause.code for cause in causes],
        sure=[cause.sure for cause in causes],
        likely=[cause.code for cause in causes],
        divergence="speed throughput" if causes else "",
        experiments=experiments,
        seconds=time.perf_counter() - started,
        judge_seconds=judge_seconds,
        why="; ".join(
            [
                *(sentence_of(f.detail) for f in judgement.findings),
                *(sentence_of(line) for cause in causes for line in cause.evidence),
            ]
        ),
    )


def run_speed(
    root: Path, work: Sequence[tuple[Entry, int]], core: int, *, on_result: Callable[[Result], None], seconds: float
) -> None:
    """Judge every (entry, seed) in order on one core; `on_result` gets each result, and none begins after `seconds`."""
    bench, until = Bench(root / "speed"), time.monotonic() + seconds
    with Trainer(core, root / f"speed-{core}") as trainer:
        for entry, seed in work:
            if time.monotonic() >= until:
                return
            side = Side(bench.world.spec("speed", seed), bench.world.data, "left")
            # The machine's own pace changes over minutes.
            baseline = trainer.train(side, f"baseline-{seed}-{entry.name}")
            if baseline is None:
                raise RuntimeError("the baseline failed")
            result = _judged(trainer, side, baseline, entry, seed)
            on_result(result)
            mark = "  " if result.right else "! "
            sys.stderr.write(mark + json.dumps(asdict(result), ensure_ascii=False) + "\n")
