"""Upgrade trials on this machine.

Environments are built, trainings run in separate processes, and records are compared.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from plumbline.environments.changes import Failure, PackageChange, conflicts, needed_changes
from plumbline.environments.loaded import place_of
from plumbline.environments.package_store import PackageStore
from plumbline.environments.selfcheck import check_trainer
from plumbline.environments.virtual_environments import Environment, Environments
from plumbline.schema.captured import CapturedSpec, Spec, read_any_spec
from plumbline.schema.errors import ConfigurationError, DiskFullError, InconclusiveError, InvalidInputError
from plumbline.schema.record import RunRecord
from plumbline.schema.suite import Suite
from plumbline.upgrade.answer import Memory, Package, Trial, TrialOutcome, TrialResult
from plumbline.upgrade.comparison import compare_inputs, compare_training, has_equal_bits
from plumbline.upgrade.inputs import Inputs
from plumbline.upgrade.runs import MOST_SECONDS, Run, Runs

_LEAST_SECONDS = 120.0
_PATIENCE = 10.0
"""A training under changes may take this many times as long as the one without."""


class LocalTrials:
    """Runner of upgrade trials on this machine.

    The current environment is trained once, for all trials with equal specs.
    """

    def __init__(
        self, suite: Suite, workload: str, work: Path, environments: Environments, store: PackageStore, *,
        say: Callable[[str], None] = lambda _: None, should_stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._suite = suite
        self._workload = workload
        self._runs = Runs(work, should_stop)
        self.environments = environments
        self._store = store
        self._say = say
        self._current: Environment | None = None
        self._candidate: Environment | None = None
        self._inputs: tuple[Inputs, Spec, Path] | None = None
        self._input_places: frozenset[str] = frozenset()
        self._references: dict[str, Run] = {}

    def run(self, trial: Trial) -> TrialResult:
        """Run one trial, and return its result."""
        began = time.monotonic()
        try:
            result = self._run(trial)
        except DiskFullError:
            raise  # every trial to come would meet it too
        except (InconclusiveError, InvalidInputError) as error:  # also a record that cannot be read
            self._say(str(error))
            failure = Failure(stage="training", message=str(error)[:4000])
            result = TrialResult(trial=trial.name, outcome="lost", failures=(failure,))
        return result.replace(seconds=time.monotonic() - began, worker=os.uname().nodename)

    def _run(self, trial: Trial) -> TrialResult:
        if trial.part == "releases":
            releases = tuple(pin for change in trial.changes for pin in self._store.releases(change))
            return TrialResult(trial=trial.name, outcome="same", releases=releases)
        failures = self._store.add(change.candidate for change in trial.changes if change.candidate is not None)
        if failures:
            return TrialResult(trial=trial.name, outcome="cannot-install", failures=failures)
        if trial.part == "environment":
            return self._environment(trial)
        environment = self.environments.build(trial.changes)
        try:
            return {
                "reference": self._reference, "inputs": self._compare_inputs, "numerics": self._compare_numerics,
                "speed": self._compare_speed,
            }[trial.part](trial, environment)  # fmt: skip
        finally:
            if environment not in (self._current, self._candidate):
                self.environments.remove(environment)

    def _environment(self, trial: Trial) -> TrialResult:
        """Build a trial's environment, and read the changed packages' metadata."""
        changes = {change.package: change for change in trial.changes}
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
            )
            for name in changes
        )
        if broken:
            return TrialResult(trial=trial.name, outcome="cannot-install", failures=broken, packages=packages)
        environment = self.environments.build(trial.changes)
        self._candidate = self._candidate or environment
        return TrialResult(trial=trial.name, outcome="same", packages=packages)

    def _reference(self, trial: Trial, environment: Environment) -> TrialResult:
        """Train the current environment once, as the reference.

        Other trainings are compared with its record.
        """
        self._current = environment
        _, spec, _ = self._own_inputs()
        run = self._reference_run(self._spec_of(trial, spec))
        if run.record is None:
            self._refuse_unable()
            failure = run.failure or Failure(stage="training", message="the current environment does not train")
            outcome: TrialOutcome = "lost" if run.is_lost else "cannot-train"
            return TrialResult(trial=trial.name, outcome=outcome, failures=(failure,))
        # What the inputs are built with counts as loaded too: a change there is compared with the inputs.
        return TrialResult(trial=trial.name, outcome="same", opened=self._opened(run.places | self._input_places, ()))

    def _compare_inputs(self, trial: Trial, environment: Environment) -> TrialResult:
        ours, _, _ = self._own_inputs()
        theirs, failure, places = self._runs.build_inputs(
            self._suite, self._workload, environment, self._runs.folder("inputs")
        )
        opened = self._opened(places, trial.changes)
        if theirs is None:
            failures = (failure,) if failure else ()
            return TrialResult(trial=trial.name, outcome="cannot-train", failures=failures, opened=opened)
        judgement = compare_inputs(ours, theirs)
        outcome: TrialOutcome = "drift" if judgement.verdict == "drift" else "same"
        return TrialResult(trial=trial.name, outcome=outcome, judgement=judgement, opened=opened)

    def _compare_numerics(self, trial: Trial, environment: Environment) -> TrialResult:
        _, spec, _ = self._own_inputs()
        chosen_spec = self._spec_of(trial, spec)
        reference = self._reference_run(chosen_spec)
        if reference.record is None:
            raise InconclusiveError("the current environment does not train this part", where=trial.name)
        run = self._train(chosen_spec, environment, limit=max(_LEAST_SECONDS, _PATIENCE * reference.seconds))
        opened = self._opened(run.places, trial.changes)
        if run.record is None:
            failures = (run.failure,) if run.failure else ()
            outcome: TrialOutcome = "lost" if run.is_lost else "cannot-train"
            return TrialResult(trial=trial.name, outcome=outcome, failures=failures, opened=opened)
        judgement = compare_training(reference.record, run.record, self._suite.gates)
        outcomes: dict[str, TrialOutcome] = {"pass": "same", "drift": "drift"}
        return TrialResult(
            trial=trial.name, outcome=outcomes.get(judgement.verdict, "lost"), judgement=judgement,
            has_equal_bits=has_equal_bits(judgement), opened=opened,
        )  # fmt: skip

    def _compare_speed(self, trial: Trial, environment: Environment) -> TrialResult:
        """Train both environments in pairs, alternating the order."""
        _, spec, _ = self._own_inputs()
        speed_spec = spec.speed_alone
        current = self._current_environment()
        ratios: list[float] = []
        memory: dict[Memory, list[float]] = {}
        opened: set[str] = set()
        for pair in range(trial.pairs):
            is_current_first = (trial.pairs_before + pair) % 2 == 0
            order = (current, environment) if is_current_first else (environment, current)
            rates: dict[bool, float] = {}
            peaks: dict[bool, dict[Memory, int]] = {}
            for place, trained in enumerate(order):
                is_ours = (place == 0) == is_current_first
                run = self._train(speed_spec, trained, limit=MOST_SECONDS)
                opened |= {*self._opened(run.places, () if is_ours else trial.changes)}
                speed = run.record.record.evidence.speed if run.record else None
                if run.record is None or speed is None or not speed.samples_per_second:
                    failures = (run.failure,) if run.failure else ()
                    outcome: TrialOutcome = "lost" if run.is_lost or is_ours else "cannot-train"
                    return TrialResult(trial=trial.name, outcome=outcome, failures=failures)
                rates[is_ours] = speed.samples_per_second
                peaks[is_ours] = _peaks(run.record.record)
            ratios.append(math.log(rates[False] / rates[True]))
            for name in peaks[True].keys() & peaks[False].keys():
                memory.setdefault(name, []).append(math.log(peaks[False][name] / peaks[True][name]))
        return TrialResult(
            trial=trial.name, outcome="same", log_ratios=tuple(ratios), opened=tuple(sorted(opened)),
            memory_ratios={name: tuple(values) for name, values in sorted(memory.items())},
        )  # fmt: skip

    def _spec_of(self, trial: Trial, spec: Spec) -> Spec:
        """Return the spec restricted to the requested parts and steps; a command runs as it is."""
        if isinstance(spec, CapturedSpec):
            return spec
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

    def _own_inputs(self) -> tuple[Inputs, Spec, Path]:
        if self._inputs is None:
            environment = self._current_environment()
            out = self._runs.folder("inputs")
            inputs, failure, self._input_places = self._runs.build_inputs(self._suite, self._workload, environment, out)
            if inputs is None:
                self._refuse_unable()
                why = failure.message if failure else "no reason given"
                what = f"the current environment cannot build the dataset: {why}"
                raise InvalidInputError(what, where=self._workload)
            self._inputs = inputs, read_any_spec(out / "spec.json"), out / "data"
        return self._inputs

    def _refuse_unable(self) -> None:
        """Raise `ConfigurationError` if the initial environment cannot train at all."""
        _, _, problem = check_trainer(str(self.environments.base.python))
        if problem:
            raise ConfigurationError(problem)

    def _reference_run(self, spec: Spec) -> Run:
        if spec.digest not in self._references:
            self._references[spec.digest] = self._train(spec, self._current_environment(), limit=MOST_SECONDS)
        return self._references[spec.digest]

    def _train(self, spec: Spec, environment: Environment, *, limit: float) -> Run:
        _, _, data = self._own_inputs()
        return self._runs.train(spec, environment, data, limit=limit, current=self._current_environment())

    def _opened(self, places: frozenset[str], changes: Sequence[PackageChange]) -> tuple[str, ...]:
        """Return the packages from which a training opened files.

        The environment is the one with these changes.
        """
        packages = self.environments.packages(changes)
        return tuple(
            name
            for name, package in sorted(packages.items())
            if any(place_of(file) in places for file in (*package.files, *package.data))
        )


def _peaks(record: RunRecord) -> dict[Memory, int]:
    """Return the peak memory values that a training measured."""
    speed = record.evidence.speed
    peaks: dict[Memory, int | None] = {"host memory": speed.peak_host_memory_bytes if speed else None}
    if speed is not None and record.fingerprint.gpus:
        peaks["device memory"] = speed.peak_memory_bytes
    return {name: value for name, value in peaks.items() if value}
