"""Assigned trainings of a round, with stable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError

from plumbline.night.dispatch import Job, TrainingOrder, job_key, record_id
from plumbline.schema.base import Name
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import digest_json
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.experiment import AbOrder
from plumbline.schema.record import ROUND_TIME
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import Suite

MAIN, RERUN, AB = "main", "rerun", "ab"
_DATE_DIGITS = 8
_LONGEST_NAME = 120
_NONCE_DIGITS = 32


def new_round_id(now: datetime, salt: str) -> str:
    """Return a new round name: sortable by time, with random characters."""
    return f"{now.astimezone(UTC):{ROUND_TIME}}-{salt[:6]}"


def round_of_run(suite: str, run_id: str, due: datetime) -> str:
    """Return a flow run's round name, equal for each start."""
    # A digest: ids of runs that are made close together begin with the same digits.
    return new_round_id(due, digest_json([suite, run_id]))


def check_round_id(name: str, *, where: str, key: str = "") -> str:
    """Validate a user's round name; raise `ConfigurationError` if invalid."""
    try:
        return TypeAdapter[str](Name).validate_python(name)
    except ValidationError as error:
        hint = "1 to 63 of lower-case letters, digits, dots, dashes and underscores, the first a letter or digit"
        raise ConfigurationError(f"{name!r} is not a valid name of a round", where=where, key=key, hint=hint) from error


def night_of(round_id: str) -> str:
    """Return the date in a round's name, or the whole name."""
    date = round_id.partition("-")[0]
    return f"{date[:4]}-{date[4:6]}-{date[6:]}" if len(date) == _DATE_DIGITS and date.isdigit() else round_id


def by_time(round_id: str) -> tuple[bool, str]:
    """Return a sort key by which dated names come last."""
    return night_of(round_id) != round_id, round_id


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assigned training of the round."""

    platform: str
    workload: str
    what: str
    """`MAIN`, `RERUN` (its speed alone, once more), `AB`, or an experiment's name."""
    experiment_id: str | None = None
    title: str = ""
    """Description of an experiment, for the name of its run."""
    ab: AbOrder | None = None
    image: str = ""
    """Container image to train in; empty for that of the work pool."""

    def run_name(self, night: str) -> str:
        """Return the run's name in Prefect's UI."""
        text = "" if self.what == MAIN else f" {self.title or self.what}"
        return f"{self.platform} {night} {self.workload}{text}"[:_LONGEST_NAME]


@dataclass(frozen=True, slots=True)
class Round:
    """One execution of a suite."""

    id: str
    suite: Suite
    specs: Mapping[str, RunSpec | CapturedSpec]
    secret: str = ""
    """Secret of the round's controllers, from which the orders' nonces derive."""

    @property
    def night(self) -> str:
        """Return the date in the round's name."""
        return night_of(self.id)

    def specs_of(self, platform: str) -> dict[str, RunSpec | CapturedSpec]:
        """Return the specs of the workloads that train on a platform."""
        chosen = self.suite.workloads_of(platform)
        return {workload: spec for workload, spec in self.specs.items() if workload in chosen}

    def assignments(self) -> tuple[Assignment, ...]:
        """Return one assignment for each platform and workload."""
        return tuple(
            Assignment(platform, workload, MAIN)
            for workload in self.specs for platform in self.suite.platforms if workload in self.specs_of(platform)
        )  # fmt: skip

    def job(self, assignment: Assignment) -> Job:
        """Return an assignment's dispatch job, with its platform's deadlines."""
        platform = self.suite.platforms[assignment.platform]
        text = assignment.workload if assignment.what == MAIN else f"{assignment.workload}-{assignment.what}"
        return Job(
            key=job_key(self.suite.name, self.id, assignment.platform, text),
            platform=assignment.platform,
            start_seconds=platform.start_seconds,
            run_seconds=self._run_seconds(assignment),
            # A retried A/B would spend its budget twice.
            retries=platform.retries if assignment.ab is None else 0,
            at_once=platform.concurrency,
        )

    def order(self, assignment: Assignment, attempt: int) -> TrainingOrder:
        """Return the order that a worker receives for an attempt."""
        platform, spec = self.suite.platforms[assignment.platform], self.specs[assignment.workload]
        key = self.job(assignment).key
        name = record_id(key, attempt)
        return TrainingOrder(
            platform=assignment.platform,
            data=platform.data,
            outbox=platform.outbox,
            record_id=name,
            round_id=self.id,
            job=key,
            attempt=attempt,
            nonce=digest_json([self.secret, name])[:_NONCE_DIGITS],
            # A different image is built from a different lock.
            expected=platform.expected.replace(lock_sha256="") if assignment.image else platform.expected,
            spec=spec.speed_alone if assignment.what == AB or assignment.what.startswith(RERUN) else spec,
            experiment_id=assignment.experiment_id,
            ab=assignment.ab,
            python=platform.python,
            run_seconds=self._run_seconds(assignment),
        )

    def _run_seconds(self, assignment: Assignment) -> float:
        limit = self.suite.platforms[assignment.platform].run_seconds
        return limit if assignment.ab is None else limit + assignment.ab.seconds
