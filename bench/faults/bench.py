"""Fault benchmark: catalogue entries from injection to verdict, in parallel."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench.faults.catalogue import Entry, function
from bench.faults.trainer import Laboratory, Side, Trainer, on_cores, two_cores
from bench.faults.world import World
from plumbline.judge import compare, needs_rerun
from plumbline.judge.confirm import begin
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.digest import bounded_name
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement

_BUDGET = 8
_GATES = Gates(throughput_drop=0.10)
_BESIDE_TWO = "two beside two"
_PROCESSES = {"apart": 1, "two processes": 2, _BESIDE_TWO: 2}
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
    divergence: str = ""
    experiments: int = 0
    seconds: float = 0.0
    judge_seconds: float = 0.0
    why: str = ""
    judge: str = ""
    """Digest of the code that judged: what a later change may make stale."""

    @property
    def right(self) -> bool:
        """Return whether a control passed, or a fault has exactly its own cause, named by any number of parts."""
        if not self.expected:
            return self.verdict == "pass"
        return self.verdict == "drift" and set(self.named) == set(self.expected.split(" + "))


class Bench:
    """Runner of entries, with one reference per workload and seed."""

    def __init__(self, root: Path) -> None:
        self.root, self.world = root, World(root / "world")
        self._references: dict[tuple[str, int], LoadedRecord] = {}
        """By workload with the number of its processes, and seed."""
        self._locks: dict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def _side(self, entry: Entry, seed: int) -> Side:
        with self._lock:
            processes = 2 if entry.setting == _BESIDE_TWO else 0
            return Side(self.world.spec(entry.workload, seed), self.world.data, "left", processes=processes)

    def reference(self, trainer: Trainer, entry: Entry, seed: int) -> LoadedRecord:
        """Return the record of an undisturbed training; that of a throughput fault is its own."""
        side = self._side(entry, seed)
        key = (entry.workload + f"-by-{side.processes}" * bool(side.processes), seed)
        with self._lock:
            lock = self._locks[key]
        if entry.is_throughput:  # The machine's own pace changes over minutes.
            return trainer.train_completed(side, f"baseline-{seed}-{entry.name}")
        with lock:
            if key not in self._references:
                self._references[key] = trainer.train_completed(side, f"reference-{key[0]}-{seed}")
            return self._references[key]

    def judged(self, trainer: Trainer, entry: Entry, seed: int) -> Result:
        """Train with the fault, compare, and confirm."""
        started = time.perf_counter()
        reference = self.reference(trainer, entry, seed)
        judge = self._slow if entry.is_throughput else self._different
        result = judge(trainer, entry, seed, reference)
        result.seconds = time.perf_counter() - started
        return result

    def _different(self, trainer: Trainer, entry: Entry, seed: int, reference: LoadedRecord) -> Result:
        """Judge what a training computes."""
        clean = self._side(entry, seed)
        label = f"{entry.name}-{entry.workload}-{seed}"
        record_id = bounded_name(f"candidate-{label}")
        read, data = reference.rows["row_id"].tolist(), clean.data
        if entry.alter:
            data = self.world.altered(label, entry.workload, function(entry.alter), read, seed)
        side = replace(
            clean, data=data, platform="right", inject=entry.inject, environment=entry.environment,
            processes=_PROCESSES.get(entry.setting, 0), cache="another-cache" if entry.setting == "cache" else "cache",
        )  # fmt: skip
        with _load() if entry.setting == "load" else nullcontext():
            candidate = trainer.train(side, record_id)
            if candidate is not None and entry.setting == "repeat":
                candidate = trainer.train(side, record_id)
        if candidate is None:
            return _without_record(entry, seed)
        before = time.perf_counter()
        first = compare(reference, candidate, throughput=False)
        judge_seconds = time.perf_counter() - before
        state = begin(reference, candidate, first, _BUDGET)
        state = Laboratory(trainer, clean, side).confirm(reference, candidate, state)
        result = _result(entry, seed, state.judgement)
        result.experiments, result.judge_seconds = state.spent, judge_seconds
        if candidate.record.exit.status != "completed":
            result.why = candidate.record.exit.message
        for folder in self.root.glob(f"work-*/{record_id}*"):
            shutil.rmtree(folder, ignore_errors=True)
        return result

    def _slow(self, trainer: Trainer, entry: Entry, seed: int, baseline: LoadedRecord) -> Result:
        """Judge the time that a training takes, with one rerun if the judge asks for it."""
        slow = replace(self._side(entry, seed), inject=entry.inject)
        label = f"{entry.name}-{seed}"
        candidate = trainer.train(slow, label)
        if candidate is None:
            return _without_record(entry, seed)
        candidate = _as_built(candidate, entry)
        before = time.perf_counter()
        judgement = compare(baseline, candidate, _GATES)
        judge_seconds, experiments = time.perf_counter() - before, 0
        if needs_rerun(judgement):
            rerun, experiments = trainer.train(slow, f"{label}-again"), 1
            if rerun is not None:
                judgement = compare(baseline, candidate, _GATES, confirms=rerun.record.evidence.speed)
        result = _result(entry, seed, judgement)
        result.experiments, result.judge_seconds = experiments, judge_seconds
        result.why = "; ".join(sentence_of(found.detail) for found in judgement.findings)
        return result


def _as_built(record: LoadedRecord, entry: Entry) -> LoadedRecord:
    """Return the record with a different build of torch, which is how slower software arrives."""
    if entry.expected != "software":
        return record
    fingerprint = record.record.fingerprint
    packages = fingerprint.packages | {"torch": f"{fingerprint.packages.get('torch', '')}+slower"}
    changed = record.record.replace(fingerprint=fingerprint.replace(packages=packages))
    return LoadedRecord(changed, record.folder, record.arrays)


def _without_record(entry: Entry, seed: int) -> Result:
    return Result(entry.name, entry.family, seed, entry.expected, "invalid", detected=False, why="no record")


def _result(entry: Entry, seed: int, final: Judgement) -> Result:
    place, causes = final.first_divergence, final.causes
    findings = [finding.detail for finding in final.findings if finding.outcome != "pass"]
    return Result(
        entry.name, entry.family, seed, entry.expected, final.verdict, detected=final.verdict == "drift",
        named=[cause.code for cause in causes], sure=[cause.sure for cause in causes],
        divergence=(
            f"{place.part} {place.stage}@{place.step} {place.at}".strip()
            if place else "throughput" * entry.is_throughput
        ),
        why="; ".join(map(sentence_of, [cause.why for cause in causes] or findings)),
    )  # fmt: skip


@contextmanager
def _load() -> Iterator[None]:
    """Let another process compute."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10000))"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def run_all(
    root: Path, work: Iterable[tuple[Entry, int]], *,
    on_result: Callable[[Result], None] = lambda _result: None, seconds: float = math.inf,
) -> list[Result]:  # fmt: skip
    """Judge every (entry, seed) in order, with one worker per core.

    Throughput is judged last, by one worker: two trainings would slow each other. `on_result` gets each result as soon
    as it is known, in the worker's thread. No entry begins after `seconds`.
    """
    bench, results = Bench(root), dict[int, Result]()
    jobs, began = list(enumerate(work)), time.monotonic()

    def judge(trainer: Trainer, job: tuple[int, tuple[Entry, int]]) -> None:
        place, (entry, seed) = job
        result = results[place] = bench.judged(trainer, entry, seed)
        on_result(result)
        sys.stderr.write(("  " if result.right else "! ") + json.dumps(asdict(result), ensure_ascii=False) + "\n")

    together = [job for job in jobs if not job[1][0].is_throughput]
    alone = [job for job in jobs if job[1][0].is_throughput]
    if together:
        on_cores(root, together, judge, seconds=seconds)
    if alone:
        left = seconds - (time.monotonic() - began)
        on_cores(root / "alone", alone, judge, cores=two_cores()[:1], seconds=left)
    return [results[place] for place, _ in jobs if place in results]
