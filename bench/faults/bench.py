"""Fault benchmark: catalogue entries from injection to verdict, in parallel."""

from __future__ import annotations

import json
import math
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench.faults.catalogue import Entry, _function
from bench.faults.portable_bits import bits_of
from bench.faults.trainer import Laboratory, Side, Trainer
from bench.faults.world import World
from plumbline.digest import bounded_name
from plumbline.judge import compare
from plumbline.judge.confirm_learn import begin_confirmation
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.verdict import Judgement

__all__ = ["Result", "run_all", "two_cores"]

_BUDGET = 8
_PROCESSES = {"apart": 1, "two processes": 2}
"""Number of separate Python processes that train the candidate, by the entry's setting."""


@dataclass
class Result:
    """Result of one entry with one seed."""

    name: str
    family: str
    seed: int
    expected: str
    verdict: str
    detected: bool
    named: list[str] = field(default_factory=list)
    sure: list[str] = field(default_factory=list)
    likely: list[str] = field(default_factory=list)
    """What `compare` alone named, before any experiment."""
    divergence: str = ""
    experiments: int = 0
    seconds: float = 0.0
    judge_seconds: float = 0.0
    why: str = ""
    tried: list[str] = field(default_factory=list)
    portable: dict[str, str] = field(default_factory=dict)
    """What the fault does to the portable leg's bits, see `portable_bits.Bits`."""
    judge: str = ""
    """Digest of the code that judged: what a later change may make stale."""

    @property
    def right(self) -> bool:
        """Return whether a control passed, or a fault has exactly its own cause, named by any number of parts."""
        if not self.expected:
            return self.verdict == "pass"
        return self.verdict == "drift" and set(self.named) == set(self.expected.split(" + "))

    @property
    def wrong(self) -> bool:
        """Return whether a wrong cause was named."""
        if not self.expected:
            return self.verdict != "pass"
        return bool(set(self.named) - {*self.expected.split(" + "), "unattributed"})


class Bench:
    """Runner of entries, with one reference per workload and seed."""

    def __init__(self, root: Path) -> None:
        self.root, self.world = root, World(root / "world")
        self._references: dict[tuple[str, int], LoadedRecord] = {}
        self._locks: dict[tuple[str, int], threading.Lock] = {}
        self._lock = threading.Lock()

    def _side(self, entry: Entry, seed: int) -> Side:
        return Side(self.world.spec(entry.workload, seed), self.world.data, "left")

    def reference(self, trainer: Trainer, entry: Entry, seed: int) -> LoadedRecord:
        """Return the record of an undisturbed training."""
        key = (entry.workload, seed)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
            side = self._side(entry, seed)
        with lock:
            if key not in self._references:
                record = trainer.train(side, f"reference-{entry.workload}-{seed}")
                if record is None or record.record.exit.status != "completed":
                    raise RuntimeError(f"the reference of {key} failed")
                self._references[key] = record
            return self._references[key]

    def judged(self, trainer: Trainer, entry: Entry, seed: int) -> Result:
        """Train with the fault, compare, and confirm."""
        started = time.perf_counter()
        reference, clean = self.reference(trainer, entry, seed), self._side(entry, seed)
        label = f"{entry.name}-{entry.workload}-{seed}"
        record_id = bounded_name(f"candidate-{label}")
        data = clean.data
        if entry.alter:
            data = self.world.altered(
                label, entry.workload, _function(entry.alter), reference.rows["row_id"].tolist(), seed
            )
        side = replace(
            clean, data=data, platform="right", inject=entry.inject, environment=entry.environment,
            processes=_PROCESSES.get(entry.setting, 0),
        )  # fmt: skip
        with _setting(entry, trainer):
            candidate = _candidate(entry, trainer, side, record_id)
        if candidate is None:
            return Result(entry.name, entry.family, seed, entry.expected, "invalid", detected=False, why="no record")
        before = time.perf_counter()
        first = compare(reference, candidate, throughput=False)
        judge_seconds = time.perf_counter() - before
        bits = bits_of(reference, candidate)
        state = begin_confirmation(reference, candidate, first, _BUDGET)
        state = Laboratory(trainer, clean, side).confirm(reference, candidate, state)
        result = _result(entry, seed, first, state.judgement)
        result.experiments, result.judge_seconds = state.spent, judge_seconds
        result.portable = bits.to_json()
        result.seconds = time.perf_counter() - started
        if candidate.record.exit.status != "completed":
            result.why = candidate.record.exit.message
        for folder in self.root.glob(f"work-*/{record_id}*"):
            shutil.rmtree(folder, ignore_errors=True)
        return result


def _candidate(entry: Entry, trainer: Trainer, side: Side, record_id: str) -> LoadedRecord | None:
    if processes := _PROCESSES.get(entry.setting):
        return trainer.train_apart(replace(side, processes=processes), record_id)
    result = trainer.train(side, record_id)
    return trainer.train(side, record_id) if result is not None and entry.setting == "repeat" else result


def _result(entry: Entry, seed: int, first: Judgement, final: Judgement) -> Result:
    place = final.first_divergence
    causes = final.causes
    return Result(
        entry.name,
        entry.family,
        seed,
        entry.expected,
        final.verdict,
        detected=final.verdict == "drift",
        named=[cause.code for cause in causes],
        sure=[cause.sure for cause in causes],
        likely=[cause.code for cause in first.causes],
        divergence=f"{place.stage}@{place.step} {place.at}" if place else "",
        why="; ".join(sentence_of(cause.why) for cause in causes)
        or "; ".join(sentence_of(f.detail) for f in final.findings if f.outcome != "pass"),
        tried=[sentence_of(line) for cause in causes for line in cause.tried],
    )


@contextmanager
def _setting(entry: Entry, trainer: Trainer) -> Iterator[None]:
    """Return the changed process settings of a control."""
    if entry.setting == "load":
        busy = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10000))"])
        try:
            yield
        finally:
            busy.kill()
            busy.wait()
    elif entry.setting == "cache":
        kept, trainer.cache = trainer.cache, trainer.folder / "another-cache"
        try:
            yield
        finally:
            trainer.cache = kept
    else:
        yield


def two_cores() -> tuple[int, ...]:
    """Return the first two usable cores, or the only one."""
    return tuple(sorted(os.sched_getaffinity(0)))[:2]


def run_all(
    root: Path,
    work: Iterable[tuple[Entry, int]],
    cores: tuple[int, ...] = (),
    *,
    on_result: Callable[[Result], None] = lambda _result: None,
    seconds: float = math.inf,
) -> list[Result]:
    """Judge every (entry, seed) in order, with one worker per core.

    `on_result` gets each result as soon as it is known, in the worker's thread. No entry begins after `seconds`.
    """
    cores = cores or two_cores()
    bench = Bench(root)
    todo: queue.SimpleQueue[tuple[int, Entry, int]] = queue.SimpleQueue()
    jobs, until = list(work), time.monotonic() + seconds
    for place, (entry, seed) in enumerate(jobs):
        todo.put((place, entry, seed))
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def drive(core: int) -> None:
        try:
            with Trainer(core, root / f"work-{core}") as trainer:
                while not failures and time.monotonic() < until:
                    try:
                        place, entry, seed = todo.get_nowait()
                    except queue.Empty:
                        return
                    result = results[place] = bench.judged(trainer, entry, seed)
                    on_result(result)
                    line = {k: v for k, v in asdict(result).items() if k != "tried"}
                    sys.stderr.write(("  " if result.right else "! ") + json.dumps(line, ensure_ascii=False) + "\n")
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the run's
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[place] for place in range(len(jobs)) if place in results]
