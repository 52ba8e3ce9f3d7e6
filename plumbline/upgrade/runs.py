"""Training and build processes in an environment.

Each is watched, and has its own folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from plumbline.environments.changes import Failure
from plumbline.environments.launch import MICROBENCHMARKS, run_training, trainer_environment
from plumbline.environments.loaded import BrokenLibrary, broken_library, loaded_places
from plumbline.environments.opened import LOADED
from plumbline.environments.parent_watch import PARENT_WATCH
from plumbline.environments.python_modules import module_command
from plumbline.environments.virtual_environments import Environment
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.base import read_model
from plumbline.schema.captured import Spec, write_any_spec
from plumbline.schema.errors import ConfigurationError, ExitCode, InconclusiveError, PlumblineError
from plumbline.schema.record import read_record
from plumbline.schema.suite import Suite
from plumbline.upgrade.inputs import INPUTS_NAME, Inputs, InputsFile, alone

MOST_SECONDS = 3600.0
_RUNS_NAME = "plumbline-runs"
"""Deleted at the start: a name of our own, for the work folder may also be a user's."""

Ending = Literal["completed", "failed", "died", "late", "machine"]
"""`died`: without a record and without a reason, for example by a signal. `late`: did not end within its time limit.
`machine`: a full disk, a lost store, or too slow a machine."""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished training."""

    record: LoadedRecord | None
    failure: Failure | None
    ending: Ending
    places: frozenset[str]
    seconds: float

    @property
    def is_lost(self) -> bool:
        """Return whether a machine failure ended the run."""
        return self.ending == "machine"


class Runs:
    """Runner of processes, with working folders below `work`.

    The folders of the command before are deleted. `should_stop` ends running trainings.
    """

    def __init__(self, work: Path, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._cache = work / "cache"
        self._folder = work / _RUNS_NAME
        self._should_stop = should_stop
        self._count = 0
        shutil.rmtree(self._folder, ignore_errors=True)

    def folder(self, kind: str) -> Path:
        """Return the next run's folder."""
        self._count += 1
        return self._folder / f"{kind}-{self._count:03d}"

    def build_inputs(
        self, suite: Suite, workload: str, environment: Environment, out: Path
    ) -> tuple[Inputs | None, Failure | None, frozenset[str]]:
        """Build dataset, tokenizer and weights in `out`, by a process.

        Return the digests or a failure, and the places from which code was loaded.
        """
        out.mkdir(parents=True)
        file, loaded = out / "suite.json", out / "loaded"
        file.write_text(alone(suite, workload, out / "data").model_dump_json(), encoding="utf-8")
        command = [*module_command(environment.python, "plumbline.upgrade.inputs"), str(file), workload, str(out)]
        variables = trainer_environment({**environment.variables, LOADED: str(loaded)})
        code, said = _run_watched(command, variables, out / "said.txt", where=workload)
        places = loaded_places(loaded)
        if code == ExitCode.PASS:
            return read_model(InputsFile, out / INPUTS_NAME).inputs, None, places
        message = _without_paths("\n".join(said[-5:]), environment)[:4000]
        if code == ExitCode.INCONCLUSIVE:
            raise InconclusiveError(message, where=workload)
        return None, Failure(stage="training" if places else "import", message=message), places

    def train(
        self, spec: Spec, environment: Environment, data: Path, *, limit: float, current: Environment | None = None
    ) -> Run:
        """Train in a new process, repeating a failure once.

        Machines fail, too. A training that takes more than `limit` seconds is the changes' fault only if `current` does
        not take as many.
        """
        run = self._train_once(spec, environment, data, limit)
        if run.record is None and not self._should_stop():
            if run.ending == "late" and current is not None and self._is_late(spec, current, data, limit):
                return replace(run, ending="machine")
            # A process that dies twice in the same environment, while the current one trains, dies of the changes.
            again = self._train_once(spec, environment, data, limit)
            run = run if run.ending == "machine" and again.record is None else again
        return run

    def _is_late(self, spec: Spec, environment: Environment, data: Path, limit: float) -> bool:
        """Train once; return whether this exceeds `limit` seconds."""
        return self._train_once(spec, environment, data, limit).ending == "late"

    def _train_once(self, spec: Spec, environment: Environment, data: Path, limit: float) -> Run:
        out = self.folder("training")
        name = out.name
        path = out.with_name(f"{name}.json")
        write_any_spec(spec, path)
        words, loaded = list[str](), out.with_name(f"{name}-loaded")
        began = time.monotonic()
        code, is_late = int(ExitCode.INCONCLUSIVE), False
        try:
            code = run_training(
                path, out, data=f"file://{data.resolve()}", cache=self._cache, platform="upgrade",
                record_id=name, python=environment.python, timeout_seconds=limit, should_stop=self._should_stop,
                environment={**environment.variables, MICROBENCHMARKS: "off", LOADED: str(loaded)},
                on_progress=lambda event: words.append(str(event["line"])) if event.get("event") == "said" else None,
                echo=False,  # a failure's words are part of the answer, and would have no name beside the progress
            )  # fmt: skip
        except ConfigurationError as error:  # a signal ended the import of a library
            failure = Failure(stage="import", message=_without_paths(str(error), environment)[:4000])
            return Run(None, failure, "failed", loaded_places(loaded), time.monotonic() - began)
        except InconclusiveError as error:
            if self._should_stop():
                raise
            words.append(str(error))
            is_late = True
        seconds = time.monotonic() - began
        places = loaded_places(loaded)
        if is_late:
            failure = Failure(stage="training", message=_without_paths("\n".join(words[-5:]), environment)[:4000])
            return Run(None, failure, "late", places, seconds)
        if code == ExitCode.PASS:
            return Run(load_record(out), None, "completed", places, seconds)
        failure, ending = _failure(out, code, words, broken_library(loaded))
        message = _without_paths(failure.message, environment)[:4000]
        return Run(None, failure.replace(message=message), ending, places, seconds)


def _run_watched(
    command: Sequence[str], variables: Mapping[str, str], log: Path, *, where: str
) -> tuple[int, list[str]]:
    """Run a process that is terminated if this process ends.

    Return its exit code and its lines of output.
    """
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, env={**variables, PARENT_WATCH: "stdin"}, stdin=subprocess.PIPE, stdout=file, stderr=file,
            start_new_session=True,
        ) as child,
    ):  # fmt: skip
        try:
            code = child.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise InconclusiveError(f"no dataset within {MOST_SECONDS:g} s", where=where) from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return code, log.read_text(encoding="utf-8", errors="replace").splitlines()


def _without_paths(text: str, environment: Environment) -> str:
    """Remove an environment's path from the text.

    The path does not outlive its trial.
    """
    for folder in {str(environment.folder), str(environment.folder.resolve())}:
        text = re.sub(rf"{re.escape(folder)}/lib/python[\d.]+/site-packages/", "", text).replace(folder, "environment")
    return text


def _failure(out: Path, code: int, words: Sequence[str], broken: BrokenLibrary | None) -> tuple[Failure, Ending]:
    """Return a training's failure, and how it ended."""
    if broken is not None:
        # A version that is refused is the package's own fault; an exception is only raised in its code.
        package = "" if broken.exception else broken.name
        return Failure(
            stage="import", package=package, library=broken.name, exception=broken.exception, message=broken.message
        ), "failed"
    message = "\n".join(words[-5:])[:4000] or f"the process ended with exit code {code} and no message"
    try:
        ending = read_record(out, verify=False).exit
    except PlumblineError:
        # No record: the libraries could not be loaded, or the process died.
        return Failure(stage="import", message=message), "failed" if code == ExitCode.USAGE else "died"
    place = f"{ending.part} step {ending.step}: " if ending.step is not None else ""
    # Names and shapes of parameters are those of the model that transformers builds.
    package = "transformers" if ending.code == "weights" else ""
    failure = Failure(stage="training", package=package, message=f"{place}{ending.message}"[:4000])
    return failure, "machine" if ending.is_infrastructure else "failed"
