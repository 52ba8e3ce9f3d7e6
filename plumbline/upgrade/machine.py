"""Trials on this machine: environments are built, trainings run in processes of their own, records are compared."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plumbline.errors import DiskFullError, ExitCode, InconclusiveError, InvalidInputError, PlumblineError
from plumbline.launch import run_training, trainer_environment
from plumbline.loaded import LOADED, loaded_places, place_of
from plumbline.parent_watch import PARENT_WATCH
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.base import read_model
from plumbline.schema.record import read_record
from plumbline.schema.spec import RunSpec, read_spec, write_spec
from plumbline.schema.suite import Suite
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.environments import VARIABLES, Environment, Environments
from plumbline.upgrade.inputs import INPUTS_NAME, Inputs, InputsFile, alone
from plumbline.upgrade.needs import conflicts, needed_changes
from plumbline.upgrade.numerics import compare_inputs, compare_training, has_equal_bits
from plumbline.upgrade.store import Store
from plumbline.upgrade.trials import Failure, Outcome, Package, Trial, TrialResult

__all__ = ["LocalTrials"]

_SECONDS = 3600.0
_LEAST_SECONDS = 120.0
_PATIENCE = 10.0
"""A training under changes may take this many times as long as the one without."""
_RUNS_NAME = "plumbline-runs"
"""Deleted at the start: a name of our own, for the work folder may also be a user's."""


Ending = Literal["completed", "failed", "died", "machine"]
"""`died`: without a record and without a reason, by a signal or a time limit. `machine`: a full disk, a lost store."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One training that ended."""

    record: LoadedRecord | None
    failure: Failure | None
    ending: Ending
    places: frozenset[str]
    seconds: float

    @property
    def is_lost(self) -> bool:
        """Whether nothing is known of the changes."""
        return self.ending == "machine"


class LocalTrials:
    """Asks this machine; the current environment's trainings are made once and kept for all trials."""

    num_parallel = 1

    def __init__(
        self, suite: Suite, workload: str, work: Path, environments: Environments, store: Store, *,
        say: Callable[[str], None] = lambda _: None, should_stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._suite = suite
        self._workload = workload
        self._work = work
        self._runs = work / _RUNS_NAME
        self.environments = environments
        self._store = store
        self._say = say
        self._should_stop = should_stop
        self._count = 0
        self._current: Environment | None = None
        self._candidate: Environment | None = None
        self._inputs: tuple[Inputs, RunSpec, Path] | None = None
        self._input_places: frozenset[str] = frozenset()
        self._references: dict[str, _Run] = {}
        shutil.rmtree(self._runs, ignore_errors=True)

    def use_store(self, store: Store) -> None:
        """Take changed packages from another store from now on; the reference trainings stay."""
        self._store = store
        self.environments.use_store(store)

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Run the trials one after the other."""
        for trial in trials:
            began = time.monotonic()
            try:
                result = self._run(trial)
            except DiskFullError:
                raise  # every trial to come would meet it too
            except InconclusiveError as error:
                self._say(str(error))
                failure = Failure(stage="training", message=str(error)[:4000])
                result = TrialResult(trial=trial.name, outcome="lost", failures=(failure,))
            yield result.replace(seconds=time.monotonic() - began, worker=os.uname().nodename)

    def _run(self, trial: Trial) -> TrialResult:
        if trial.part == "environment":
            return self._environment(trial)
        failures = self._store.add(change.candidate for change in trial.changes if change.candidate is not None)
        if failures:
            return TrialResult(trial=trial.name, outcome="cannot-install", failures=failures)
        environment = self.environments.build(trial.changes)
        try:
            result = {
                "reference": self._reference, "inputs": self._compare_inputs, "numerics": self._compare_numerics,
                "speed": self._compare_speed,
            }[trial.part](trial, environment)  # fmt: skip
        finally:
            if environment not in (self._current, self._candidate):
                self.environments.remove(environment)
        return result.replace(environment_sha256=environment.sha256)

    def _environment(self, trial: Trial) -> TrialResult:
        """Build it, and say what the metadata of the changed packages tells."""
        changes = {change.package: change for change in trial.changes}
        failures = self._store.add(change.candidate for change in trial.changes if change.candidate is not None)
        if failures:
            return TrialResult(trial=trial.name, outcome="cannot-install", failures=failures)
        after = self.environments.packages(trial.changes)
        new = {name: after[name] for name in changes if name in after}
        current = self.environments.current
        broken = tuple(
            Failure(stage="resolve", package=name, message=message) for name, message in conflicts(current, after)
        )
        needs = needed_changes(changes, current, new)
        packages = tuple(
            Package(
                package=name,
                links=dict(new[name].links) if name in new else dict(current[name].links) if name in current else {},
                needs=tuple(sorted(needs[name])),
                has_startup_hook=any(
                    one is not None and one.has_startup_hook for one in (new.get(name), current.get(name))
                ),
            )
            for name in changes
        )
        if broken:
            return TrialResult(trial=trial.name, outcome="cannot-install", failures=broken, packages=packages)
        self._candidate = self.environments.build(trial.changes)
        return TrialResult(
            trial=trial.name, outcome="same", packages=packages, environment_sha256=self._candidate.sha256
        )

    def _reference(self, trial: Trial, environment: Environment) -> TrialResult:
        """Train the current environment once; its record is what the others are compared with."""
        self._current = environment
        _, spec, _ = self._own_inputs()
        run = self._reference_run(self._spec_of(trial, spec))
        if run.record is None:
            failure = run.failure or Failure(stage="training", message="the current environment does not train")
            outcome: Outcome = "lost" if run.is_lost else "cannot-train"
            return TrialResult(trial=trial.name, outcome=outcome, failures=(failure,))
        # What the inputs are built with counts as loaded too: a change there is compared with the inputs.
        return TrialResult(
            trial=trial.name, outcome="same", imported=self._imported(run.places | self._input_places, ())
        )

    def _compare_inputs(self, trial: Trial, environment: Environment) -> TrialResult:
        ours, _, _ = self._own_inputs()
        self._count += 1
        theirs, failure, places = self._build_inputs(environment, self._runs / f"inputs-{self._count:03d}")
        imported = self._imported(places, trial.changes)
        if theirs is None:
            found = (failure,) if failure else ()
            return TrialResult(trial=trial.name, outcome="cannot-train", failures=found, imported=imported)
        judgement = compare_inputs(ours, theirs)
        outcome: Outcome = "drift" if judgement.verdict == "drift" else "same"
        return TrialResult(trial=trial.name, outcome=outcome, judgement=judgement, imported=imported)

    def _compare_numerics(self, trial: Trial, environment: Environment) -> TrialResult:
        _, spec, _ = self._own_inputs()
        wanted = self._spec_of(trial, spec)
        reference = self._reference_run(wanted)
        if reference.record is None:
            raise InconclusiveError("the current environment does not train this part", where=trial.name)
        run = self._train(wanted, environment, limit=max(_LEAST_SECONDS, _PATIENCE * reference.seconds))
        imported = self._imported(run.places, trial.changes)
        if run.record is None:
            failures = (run.failure,) if run.failure else ()
            outcome: Outcome = "lost" if run.is_lost else "cannot-train"
            return TrialResult(trial=trial.name, outcome=outcome, failures=failures, imported=imported)
        judgement = compare_training(reference.record, run.record, self._suite.gates)
        outcomes: dict[str, Outcome] = {"pass": "same", "drift": "drift"}
        return TrialResult(
            trial=trial.name, outcome=outcomes.get(judgement.verdict, "lost"), judgement=judgement,
            has_equal_bits=has_equal_bits(judgement), imported=imported,
        )  # fmt: skip

    def _compare_speed(self, trial: Trial, environment: Environment) -> TrialResult:
        """Train both environments in turn, the one first that was last in the pair before."""
        _, spec, _ = self._own_inputs()
        wanted = spec.replace(probe=None, learn=None)
        current = self._current_environment()
        ratios: list[float] = []
        for pair in range(trial.pairs):
            order = (current, environment) if pair % 2 == 0 else (environment, current)
            rates: dict[bool, float] = {}
            for place, one in enumerate(order):
                run = self._train(wanted, one, limit=_SECONDS)
                speed = run.record.record.evidence.speed if run.record else None
                if speed is None or not speed.samples_per_second:
                    failures = (run.failure,) if run.failure else ()
                    is_ours = (place == 0) == (pair % 2 == 0)
                    outcome: Outcome = "lost" if run.is_lost or is_ours else "cannot-train"
                    return TrialResult(trial=trial.name, outcome=outcome, failures=failures)
                rates[(place == 0) == (pair % 2 == 0)] = speed.samples_per_second
            ratios.append(math.log(rates[False] / rates[True]))
        return TrialResult(trial=trial.name, outcome="same", log_ratios=tuple(ratios))

    def _spec_of(self, trial: Trial, spec: RunSpec) -> RunSpec:
        """Return the recipe of the part that is asked for, and no more of it."""
        probe = spec.probe if trial.probe else None
        if probe is not None and trial.steps is not None and trial.steps < probe.steps:
            taps = tuple(step for step in probe.tap_steps if step < trial.steps) or (0,)
            probe = probe.replace(
                steps=trial.steps, tap_steps=taps, portable_steps=min(probe.portable_steps, trial.steps)
            )
        learn = spec.learn if trial.learn or probe is None else None
        return spec.replace(probe=probe, learn=learn, speed=None)

    def _current_environment(self) -> Environment:
        if self._current is None:
            self._current = self.environments.build(())
        return self._current

    def _own_inputs(self) -> tuple[Inputs, RunSpec, Path]:
        if self._inputs is None:
            environment = self._current_environment()
            out = self._runs / "inputs-current"
            inputs, failure, self._input_places = self._build_inputs(environment, out)
            if inputs is None:
                why = failure.message if failure else "no reason given"
                what = f"the current environment cannot build the dataset: {why}"
                raise InvalidInputError(what, where=self._workload)
            self._inputs = inputs, read_spec(out / "spec.json"), out / "data"
        return self._inputs

    def _build_inputs(
        self, environment: Environment, out: Path
    ) -> tuple[Inputs | None, Failure | None, frozenset[str]]:
        out.mkdir(parents=True)
        suite, loaded = out / "suite.json", out / "loaded"
        suite.write_text(alone(self._suite, self._workload, out / "data").model_dump_json(), encoding="utf-8")
        command = [str(environment.python), "-m", "plumbline.upgrade.inputs", str(suite), self._workload, str(out)]
        variables = trainer_environment({**VARIABLES, LOADED: str(loaded)})
        code, said = _run_watched(command, variables, out / "said.txt", where=self._workload)
        places = loaded_places(loaded)
        if code == ExitCode.PASS:
            return read_model(InputsFile, out / INPUTS_NAME).inputs, None, places
        message = "\n".join(said[-5:])[:4000]
        if code == ExitCode.INCONCLUSIVE:
            raise InconclusiveError(message, where=self._workload)
        return None, Failure(stage="training" if places else "import", message=message), places

    def _reference_run(self, spec: RunSpec) -> _Run:
        if spec.digest not in self._references:
            self._references[spec.digest] = self._train(spec, self._current_environment(), limit=_SECONDS)
        return self._references[spec.digest]

    def _train(self, spec: RunSpec, environment: Environment, *, limit: float) -> _Run:
        """Train in a fresh process; what fails is repeated once, for machines fail too."""
        run = self._train_once(spec, environment, limit)
        if run.record is None and not self._should_stop():
            # A process that dies twice in the same environment, while the current one trains, dies of the changes.
            again = self._train_once(spec, environment, limit)
            run = run if run.ending == "machine" and again.record is None else again
        return run

    def _train_once(self, spec: RunSpec, environment: Environment, limit: float) -> _Run:
        _, _, data = self._own_inputs()
        self._count += 1
        name = f"training-{self._count:03d}"
        out = self._runs / name
        path = self._runs / f"{name}.json"
        write_spec(spec, path)
        words: list[str] = []
        began = time.monotonic()
        code: int | None = None
        try:
            code = run_training(
                path, out, data=f"file://{data.resolve()}", cache=self._work / "cache", platform="upgrade",
                record_id=name, python=environment.python, timeout_seconds=limit, should_stop=self._should_stop,
                environment={**VARIABLES, LOADED: str(self._runs / f"{name}-loaded")},
                on_progress=lambda event: words.append(str(event["line"])) if event.get("event") == "said" else None,
            )  # fmt: skip
        except InconclusiveError as error:
            if self._should_stop():
                raise
            words.append(str(error))
        seconds = time.monotonic() - began
        places = loaded_places(self._runs / f"{name}-loaded")
        if code == ExitCode.PASS:
            return _Run(load_record(out), None, "completed", places, seconds)
        failure, ending = _failure(out, code, words)
        return _Run(None, failure, ending, places, seconds)

    def _imported(self, places: frozenset[str], changes: Sequence[PackageChange]) -> tuple[str, ...]:
        """Return the packages of an environment with these changes that code was loaded from."""
        packages = self.environments.packages(changes)
        return tuple(
            name for name, one in sorted(packages.items()) if any(place_of(file) in places for file in one.files)
        )


def _run_watched(
    command: Sequence[str], variables: Mapping[str, str], log: Path, *, where: str
) -> tuple[int, list[str]]:
    """Run a process that ends with this one; return its exit code and the lines that it wrote."""
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, env={**variables, PARENT_WATCH: "stdin"}, stdin=subprocess.PIPE, stdout=file, stderr=file,
            start_new_session=True,
        ) as child,
    ):  # fmt: skip
        try:
            code = child.wait(_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise InconclusiveError(f"no dataset within {_SECONDS:g} s", where=where) from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return code, log.read_text(encoding="utf-8", errors="replace").splitlines()


def _failure(out: Path, code: int | None, words: Sequence[str]) -> tuple[Failure, Ending]:
    """Return why a training failed, and in which way."""
    message = "\n".join(words[-5:])[:4000]
    try:
        ending = read_record(out, verify=False).exit
    except PlumblineError:
        # No record: the libraries could not be loaded, or the process died.
        return Failure(stage="import", message=message), "failed" if code == ExitCode.USAGE else "died"
    place = f"{ending.part} step {ending.step}: " if ending.step is not None else ""
    failure = Failure(stage="training", message=f"{place}{ending.message}"[:4000])
    return failure, "machine" if ending.is_infrastructure else "failed"
