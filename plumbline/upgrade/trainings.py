"""Trainings of one spec on this machine, under the current lock with any of the changes applied."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from plumbline.errors import ExitCode
from plumbline.launch import run_training
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.upgrade.locks import PackageChange
from plumbline.upgrade.overlay import Overlays

__all__ = ["Trainings"]

_RUN_SECONDS = 3600.0
_RUNS_NAME = "plumbline-runs"
"""It is deleted: a name of our own, which a work folder that is also a user's (`--work .`) does not hold already."""


class Trainings:
    """Each in a folder of its own below `work`; those of the command before it are deleted."""

    def __init__(self, spec: RunSpec, data: str, work: Path, overlays: Overlays) -> None:
        self._data = data
        self._cache = work / "cache"
        self._runs = work / _RUNS_NAME
        self._overlays = overlays
        self._spec = self._runs / "spec.json"
        self._count = 0
        shutil.rmtree(self._runs, ignore_errors=True)
        write_spec(spec, self._spec)

    def train(self, changes: Sequence[PackageChange]) -> LoadedRecord | None:
        """The record of a training with `changes` applied; `None` if that set cannot train at all."""
        self._count += 1
        name = f"trial-{self._count:02d}"
        out = self._runs / name
        code = run_training(
            self._spec, out, data=self._data, cache=self._cache, platform="upgrade", record_id=name,
            environment=self._overlays.environment(changes), timeout_seconds=_RUN_SECONDS,
        )  # fmt: skip
        return load_record(out) if code == ExitCode.PASS else None
