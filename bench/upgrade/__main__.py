"""The upgrade gate on seeded cases: does it name every culprit exactly, and accuse no other package?

`python -m bench.upgrade [--held-out] [--only NAME ...] [--minutes N]` trains with the real trainer. The benchmark
writes the result after each case, and skips the cases in it: an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from bench.faults.results import machine
from bench.upgrade.build import base_packages, build_case
from bench.upgrade.cases import CASES, HELD_OUT, Case
from bench.upgrade.effects import FLAKY_COUNT
from plumbline.data.datasets import grammar
from plumbline.environments.changes import PackageChange
from plumbline.environments.installed import Installed, installed_packages
from plumbline.environments.installer import Installer
from plumbline.environments.locks import read_lock
from plumbline.environments.package_store import PackageStore
from plumbline.environments.virtual_environments import Environments
from plumbline.schema.errors import PlumblineError
from plumbline.schema.suite import read_suite
from plumbline.upgrade.answer import UpgradeAnswer
from plumbline.upgrade.gate import Parts, UpgradeGate
from plumbline.upgrade.machine import LocalTrials

RESULTS = Path(__file__).resolve().parents[1] / "results"
LOCK = Path(__file__).resolve().parents[2] / "locks" / "trainer.txt"
_FEW_FILES = 400
SUITE = """name = "upgrade-bench"
store = "file://central"
reference = "here"

[datasets.reviews]
path = "{source}"
text_column = "text"
label_column = "label"
train_rows = 64
evaluation_rows = 16
vocab_size = 256

[workloads.reviews]
model = "tiny"
data = "reviews"
seed = 7
batch_size = 4
sequence_length = 16
[workloads.reviews.probe]
steps = 2
evaluation_rows = 8
[workloads.reviews.learn]
steps = 4
expect = "chance"
evaluate_every = 4
checkpoint_every = 4
evaluation_rows = 8
[workloads.reviews.speed]
steps = 60
precision = "fp32"

[platforms.here]
work_pool = "here"
data = "file://data"
outbox = "file://outbox"
"""


def _source(path: Path) -> None:
    """Write the rows that every case trains on."""
    rows = list(grammar.reviews(1, 0, 96))
    pq.write_table(pa.table({"text": [row.text for row in rows], "label": [row.label for row in rows]}), path)


def _trainer_packages() -> dict[str, Installed]:
    """Return the installed packages of a trainer, and small ones to change; large development tools are left out."""
    installed = installed_packages()
    trainer = read_lock(LOCK).pins
    return {name: one for name, one in installed.items() if name in trainer or len(one.files) <= _FEW_FILES}


class _CurrentStore:
    """The store of the present case, so that all cases have one runner of trials."""

    store: PackageStore

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Bench:
    """One work folder; the current environment is trained once for all cases."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        source = work / "reviews.parquet"
        if not source.is_file():
            _source(source)
        (work / "suite.toml").write_text(SUITE.format(source=source), encoding="utf-8")
        self.suite = read_suite(work / "suite.toml")
        # Wheels are written anew: a store that was filled before would hide a changed effect.
        for name in ("index", "store", "environments"):
            shutil.rmtree(work / name, ignore_errors=True)
        base, store = base_packages(work / "index"), self._store("", work / "index")
        problems = store.add(base)
        if problems:
            sys.exit(f"the base cannot be installed: {problems[0].message}")
        self.current = {**_trainer_packages(), **{pin.name: store.read(pin) for pin in base}}
        self.changed = cast("PackageStore", _CurrentStore())
        self.environments = Environments(work / "environments", self.changed, self.current)
        self.trials = LocalTrials(self.suite, "reviews", work, self.environments, self.changed, say=_say)

    def _store(self, name: str, index: Path) -> PackageStore:
        installer = Installer("pip", ("--no-index", f"--find-links={index}"))
        return PackageStore(self.work / "store" / name, installer, allows_unhashed=True)

    def _changes(self, case: Case) -> tuple[PackageChange, ...]:
        """Write the case's wheels, and take changed packages from them."""
        index = self.work / "indexes" / case.name
        shutil.rmtree(index, ignore_errors=True)
        os.environ.pop("PIP_CACHE_DIR", None)
        os.environ[FLAKY_COUNT] = str(self.work / "flaky-count")
        Path(os.environ[FLAKY_COUNT]).unlink(missing_ok=True)
        changes = build_case(case, self.current, index)
        self.changed.store = self._store(case.name, index)
        return changes

    def run(self, case: Case) -> dict[str, Any]:
        """Judge one case; what is wrong with the answer stands beside it."""
        began, cpu = time.monotonic(), _cpu_seconds()
        changes = self._changes(case)
        parts = Parts(speed=case.speed)
        try:
            answer = UpgradeGate(self.trials, self.suite.gates, parts, say=_say).judge(changes)
        except PlumblineError as error:
            answer = UpgradeAnswer(verdict="inconclusive", notes=(str(error),))
        self.environments.prune(2)
        shutil.rmtree(self.work / "store" / case.name, ignore_errors=True)
        named = [sorted(change.package for change in culprit.changes) for culprit in answer.culprits]
        guilty = {name for one in case.culprits for name in one} | case.allowed
        innocent = {name for names in named for name in names} - guilty
        exact = {frozenset(names) for names in named if not set(names) <= case.allowed} == set(case.culprits)
        trainings = [trial for trial in answer.trials if trial.part not in ("environment", "reference")]
        return {
            "name": case.name, "num_changes": len(changes), "expected": sorted(map(sorted, case.culprits)),
            "named": named, "verdict": answer.verdict, "wanted_verdict": case.verdict,
            "exact": exact and answer.verdict == case.verdict, "wrong_accusations": sorted(innocent),
            "sentences": list(answer.sentences), "trials": len(trainings), "log2_n": round(math.log2(len(changes)), 2),
            "seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(_cpu_seconds() - cpu, 1),
            "not_opened": len(answer.not_opened), "notes": list(answer.notes),
        }  # fmt: skip


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _summary(cases: Sequence[dict[str, Any]], total: int) -> dict[str, Any]:
    done = len(cases)
    return {
        "cases": total, "run": done, "named_exactly": sum(case["exact"] for case in cases),
        "share": round(sum(case["exact"] for case in cases) / done, 3) if done else None,
        "wrong_accusations": sum(bool(case["wrong_accusations"]) for case in cases),
    }  # fmt: skip


def main() -> int:
    """Run the cases that have no result; return 1 unless all are named exactly without a wrong accusation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--work", type=Path, default=Path(".plumbline/upgrade-bench"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = HELD_OUT if arguments.held_out else CASES
    out = arguments.out or RESULTS / ("upgrade-held-out.json" if arguments.held_out else "upgrade.json")
    results: dict[str, Any] = {}
    if out.is_file():
        results = {case["name"]: case for case in json.loads(out.read_bytes())["results"]}
    deadline = time.monotonic() + 60 * arguments.minutes
    left = [case for case in cases if case.name not in results and case.name in (arguments.only or [case.name])]
    bench = Bench(arguments.work.resolve())
    for case in left:
        if time.monotonic() > deadline:
            break
        found = bench.run(case)
        results[case.name] = found
        _say(f"{case.name}: {'exact' if found['exact'] else 'NOT EXACT'}: {found['named']} in {found['trials']} trials")
        ordered = [results[one.name] for one in cases if one.name in results]
        document = {"machine": machine(), "summary": _summary(ordered, len(cases)), "results": ordered}
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    summary = _summary(list(results.values()), len(cases))
    print(json.dumps(summary))
    return int(summary["run"] < len(cases) or summary["wrong_accusations"] > 0 or (summary["share"] or 0) < 0.95)


if __name__ == "__main__":
    sys.exit(main())
