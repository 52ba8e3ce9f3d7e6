"""A/B test of two environments on one machine.

Blocks of trainings run in both environments, each training in a new process. A block has two runs of each, in an order
that the controller has drawn. The first record of tonight's environment is kept; its evidence contains the metrics of
all trainings.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from plumbline.data.staging.part import disk_errors
from plumbline.environments.changes import PackageChange
from plumbline.environments.installed import hashed_pins
from plumbline.environments.installer import choose_installer
from plumbline.environments.locks.model import Pin
from plumbline.environments.package_store import PackageStore
from plumbline.environments.virtual_environments import Environments, is_on_python_path
from plumbline.judge.history.metrics import read_metrics
from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import DiskFullError, ExitCode, PlumblineError, UnavailableError
from plumbline.schema.experiment import AbEvidence, AbOrder, AbRun
from plumbline.schema.record import RECORD_NAME, RunRecord, read_record

Built = TypeVar("Built")
"""Type of the two built environments."""


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Python interpreters: the worker's own, and one with the baseline's packages.

    Both are built the same way, so that the location of files favours neither.
    """

    tonight: Path
    baseline: Path


def build_environments(order: AbOrder, root: Path) -> Interpreters:
    """Build both environments below `root`, from hashed pins in the worker's locks.

    Raise `PlumblineError` if the baseline's environment cannot be built.
    """
    hashed = hashed_pins(root)
    store = PackageStore(root / "store", choose_installer())
    environments = Environments(root / "environments", store)
    changes = [
        PackageChange(package=pin.name, current=None, candidate=pin if version else None)
        for pin, version in ((_pin(name, version, hashed), version) for name, version in order.packages)
    ]
    for change in changes:
        installed = environments.current.get(change.package)
        if installed is not None and is_on_python_path(installed):
            text = f"{change.package} is on PYTHONPATH, which both environments import first"
            raise UnavailableError(text, where=str(installed.root))
    failures = store.add(change.candidate for change in changes if change.candidate is not None)
    if failures:
        raise UnavailableError(failures[0].message, where=failures[0].package)
    environments.prune()
    return Interpreters(environments.build(()).python, environments.build(changes).python)


def _pin(name: str, version: str, hashed: Mapping[tuple[str, str], Pin]) -> Pin:
    pin = Pin(name=name, version=version)
    return hashed.get((pin.name, pin.identity[0]), pin)


@dataclass
class _Runs(Generic[Built]):
    """Trainings of an A/B test so far."""

    train: Callable[[Built | None, bool, Path], int]
    built: Built | None
    folder: Path
    runs: list[AbRun]
    kept: Path | None = None
    count: int = 0

    def run(self, block: int, *, is_tonight: bool) -> tuple[int, str]:
        """Train once; return exit code and failure message."""
        out = self.folder / f"run-{self.count:03d}"
        self.count += 1
        code = self.train(self.built, is_tonight, out)
        record = _read(out)
        if code == ExitCode.PASS and record is not None:
            self.runs.append(AbRun(block=block, is_tonight=is_tonight, metrics=read_metrics(record)))
        if is_tonight and (self.kept is None or code != ExitCode.PASS) and record is not None:
            self.kept = out
        else:
            shutil.rmtree(out, ignore_errors=True)
        return code, record.exit.message if record is not None else f"the trainer ended with exit code {code}"


def run_ab(
    order: AbOrder, build: Callable[[AbOrder], Built], train: Callable[[Built | None, bool, Path], int], folder: Path,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, Path | None]:  # fmt: skip
    """Run the A/B test's blocks; return exit code and record folder.

    The folder is `None` without a record. `build` makes both environments. `train` trains in tonight's environment
    (true) or in the baseline's (false), and gets `None` if the build failed. If the baseline's environment cannot be
    built or cannot train, the evidence has the reason. A failed training in tonight's environment ends the A/B with its
    own record.
    """
    why = ""
    try:
        runs = _Runs(train, build(order), folder, [])
    except DiskFullError:
        raise  # not a failure of the environment
    except PlumblineError as error:
        runs = _Runs(train, None, folder, [])
        code, _ = runs.run(0, is_tonight=True)
        return code, _finished(runs, order, str(error))
    began = clock()
    for block in range(order.num_blocks):
        if block and (clock() - began) * (block + 1) / block > order.seconds:
            break
        for is_tonight in order.block(block):
            code, message = runs.run(block, is_tonight=is_tonight)
            if code != ExitCode.PASS and is_tonight:
                return code, _finished(runs, order, message)
            if code != ExitCode.PASS:
                why = f"the baseline's environment cannot train: {message}"
                break
        if why:
            break
    return int(ExitCode.PASS), _finished(runs, order, why)


def _finished(runs: _Runs[Built], order: AbOrder, why: str) -> Path | None:
    """Add the A/B evidence to the last record."""
    record = _read(runs.kept) if runs.kept is not None else None
    if record is None or runs.kept is None:
        return None
    evidence = AbEvidence(order_sha256=order.digest, runs=tuple(runs.runs), unavailable=why[:2000])
    whole = record.replace(evidence=record.evidence.replace(ab=evidence))
    with disk_errors(runs.kept):
        (runs.kept / RECORD_NAME).write_bytes(canonical_json(whole.to_json()))
    return runs.kept


def _read(folder: Path) -> RunRecord | None:
    try:
        return read_record(folder)
    except PlumblineError:
        return None
