"""Trainings of the benchmark: a fork server per core, which take jobs from one list, and confirmation experiments."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from bench.faults.results import ROOT
from plumbline.environments.launch import run_training
from plumbline.judge.confirm import after_experiment, next_request
from plumbline.judge.confirmation import Confirmation, Request
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.digest import canonical_json, digest_json
from plumbline.schema.errors import PlumblineError
from plumbline.schema.experiment import EXPERIMENT_NAME
from plumbline.schema.record import RECORD_NAME

Job = TypeVar("Job")


@dataclass(frozen=True)
class Side:
    """Training of one platform: data, injections, environment."""

    spec: Path
    data: str
    platform: str
    inject: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    processes: int = 0
    """Number of processes of an own interpreter each; 0 is a fork of the server."""
    cache: str = "cache"


class Trainer:
    """One fork server, pinned to a core."""

    def __init__(self, core: int, folder: Path) -> None:
        self.core, self.folder = core, folder
        folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.faults.forkserver", str(core)],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the fork server ended")

    def train(self, side: Side, record_id: str, experiment: Path | None = None) -> LoadedRecord | None:
        """Train once; return the record, or `None` if missing."""
        out = self.folder / record_id
        shutil.rmtree(out, ignore_errors=True)
        (self._train_apart if side.processes else self._fork)(side, out, experiment)
        return load_record(out) if (out / RECORD_NAME).is_file() else None

    def _fork(self, side: Side, out: Path, experiment: Path | None) -> None:
        given = {
            "--data": side.data,
            "--cache": self.folder / side.cache,
            "--platform": side.platform,
            "--record-id": out.name,
        }
        given |= {"--experiment": experiment} if experiment else {}
        arguments = [str(side.spec), str(out), *(str(word) for pair in given.items() for word in pair)]
        job = {
            "arguments": arguments, "inject": side.inject, "environment": side.environment,
            "log": str(self.folder / f"{out.name}.log"),
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _train_apart(self, side: Side, out: Path, experiment: Path | None) -> None:
        """Train like the product, in new interpreters, without injections."""
        run_training(
            side.spec, out, data=side.data, cache=self.folder / side.cache, platform=side.platform, record_id=out.name,
            environment={"OMP_NUM_THREADS": "1", **side.environment}, timeout_seconds=300,
            num_processes=side.processes, experiment=experiment,
        )  # fmt: skip

    def train_completed(self, side: Side, record_id: str) -> LoadedRecord:
        """Train once; raise `RuntimeError` with the end of the log if the training did not complete."""
        record = self.train(side, record_id)
        if record is None or record.record.exit.status != "completed":
            log = self.folder / f"{record_id}.log"
            end = log.read_text(errors="replace")[-2000:] if log.is_file() else ""
            raise RuntimeError(f"{record_id} did not complete:\n{end}")
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # It is idle; on a busy machine its own end takes more than half a minute.
        self._process.communicate()


class Laboratory:
    """Runner of a Confirmation's requests, with cached captures."""

    _lock = threading.Lock()
    _captures: dict[str, LoadedRecord | None] = {}

    def __init__(self, trainer: Trainer, reference: Side, candidate: Side) -> None:
        self._trainer, self._sides = trainer, {"reference": reference, "candidate": candidate}
        self._folders: dict[str, Path] = {}

    def confirm(self, reference: LoadedRecord, candidate: LoadedRecord, state: Confirmation) -> Confirmation:
        """Run requests until none is left."""
        for record in (reference, candidate):
            self._folders[record.record.record_id] = record.folder
        while (request := next_request(state)) is not None:
            state = after_experiment(state, request, self._run(request))
        return state

    def _run(self, request: Request) -> LoadedRecord | None:
        side, experiment = self._sides[request.runs_on], request.experiment
        key = digest_json([str(side.spec), experiment.to_json() | {"experiment_id": "x"}])
        with self._lock:
            known = self._captures.get(key) if request.runs_on == "reference" else None
        if known is None:
            name = f"kept-{key[:24]}" if request.runs_on == "reference" else experiment.experiment_id
            known = self._train(request, side, name)
            if request.runs_on == "reference":
                with self._lock:
                    self._captures[key] = known
        if known is not None:
            self._folders[known.record.record_id] = known.folder
        return known

    def _train(self, request: Request, side: Side, record_id: str) -> LoadedRecord | None:
        bundle = self._trainer.folder / f"bundle-{record_id}"
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir(parents=True)
        (bundle / EXPERIMENT_NAME).write_bytes(canonical_json(request.experiment.to_json()))
        for source in request.sources:
            shutil.copyfile(self._folders[source.record_id] / source.part, bundle / source.key)
        try:
            return self._trainer.train(side, record_id, bundle)
        except PlumblineError:
            return None
        finally:
            shutil.rmtree(bundle, ignore_errors=True)


def two_cores() -> tuple[int, ...]:
    """Return the first two usable cores, or the only one."""
    return tuple(sorted(os.sched_getaffinity(0)))[:2]


def on_cores(
    root: Path, jobs: Iterable[Job], work: Callable[[Trainer, Job], None], *,
    cores: tuple[int, ...] = (), seconds: float = math.inf,
) -> None:  # fmt: skip
    """Call `work(trainer, job)` for each job in order, with one worker per core.

    No job begins after `seconds`, or once a job has failed: the first error is raised again.
    """
    waiting, lock = list(reversed(list(jobs))), threading.Lock()
    until, failures = time.monotonic() + seconds, list[BaseException]()

    def drive(core: int) -> None:
        try:
            with Trainer(core, root / f"work-{core}") as trainer:
                while not failures and time.monotonic() < until:
                    with lock:
                        if not waiting:
                            return
                        job = waiting.pop()
                    work(trainer, job)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the run's
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(core,)) for core in cores or two_cores()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
