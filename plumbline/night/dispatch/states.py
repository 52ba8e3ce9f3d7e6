"""Dispatch types: names, jobs, worker orders, observations, actions.

A worker that reads its order loads neither judge nor report.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pydantic import Field

from plumbline import __version__
from plumbline.schema.base import Label, Model, Name
from plumbline.schema.captured import Spec
from plumbline.schema.digest import bounded_name
from plumbline.schema.experiment import AbOrder
from plumbline.schema.fingerprint import Expected
from plumbline.schema.record import RunRecord
from plumbline.schema.suite_file import StoreUrl


class ChildState(Enum):
    """State of a flow run, reduced to what dispatch distinguishes."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    """A worker has claimed the run, and not started it yet."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CRASHED = "crashed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Return whether the state is final."""
        return self not in (ChildState.SCHEDULED, ChildState.PENDING, ChildState.RUNNING)


class Phase(Enum):
    """Phase of a training in dispatch."""

    SEEKING = "seeking"
    WAITING = "waiting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SETTLING = "settling"
    DONE = "done"


class Action(Enum):
    """Action that the loop takes for a training before observing again."""

    NONE = "none"
    START = "start"
    CANCEL = "cancel"
    FORCE = "force"
    """Mark a run as ended that no process ended, to free its slot in the work pool."""
    LOOK = "look"
    """Check whether the outbox contains the complete record."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds that no suite configures."""

    lost_seconds: float = 60.0
    """Maximum silence of a running child, which reports every few seconds."""
    look_seconds: float = 10.0
    """Period of outbox checks while a child runs: a run lost by Prefect may still write its record."""
    cancel_seconds: float = 30.0
    """Maximum time for a cancelled child to end."""
    settle_seconds: float = 60.0
    """Maximum time for retrying an unreachable outbox."""
    gap_seconds: float = 10.0
    """Maximum time between two server answers that counts as waiting: the server may have hung."""
    away_seconds: float = 120.0
    """Maximum time after the start deadline for an unresponsive server."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training to dispatch."""

    key: str
    platform: str
    start_seconds: float
    run_seconds: float
    retries: int
    at_once: int = 1
    """Number of the platform's jobs at a time."""


@dataclass(frozen=True, slots=True)
class ChildRun:
    """Dispatched run as Prefect reports it."""

    state: ChildState
    message: str = ""
    alive: str = ""
    """Value that changes with every progress report."""
    retryable: bool = True
    """Whether a failure was one of infrastructure."""
    by_person: bool | None = None
    """Whether a person, not a controller, cancelled the run; `None` if unknown."""
    is_misconfigured: bool = False
    """Whether a failure was one of the platform's set-up, such as an environment that cannot train."""


class RecordKind(Enum):
    """Kind of record found in an outbox for an attempt."""

    ABSENT = "absent"
    COMPLETE = "complete"
    """The ordered record, possibly of a failed training."""
    INFRASTRUCTURE = "infrastructure"
    """The ordered record, of a training that failed because of infrastructure."""
    FOREIGN = "foreign"
    """A record of a different order."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Kind of a record, with its error if failed."""

    kind: RecordKind
    why: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Current observation of a training; `None` means unknown."""

    online: bool | None = None
    child: ChildRun | None = None
    recorded: Recorded | None = None
    left: int | None = None
    """Last attempt dispatched by an earlier controller."""
    refused: str = ""
    """Reason why the training can never be dispatched."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a dispatched training: the recorded attempt, or a failure reason."""

    attempt: int | None
    why: str = ""
    notes: tuple[str, ...] = ()
    attempts: int = 0
    is_misconfigured: bool = False
    """Whether the platform is not set up to train."""


def job_key(suite: str, round_id: str, platform: str, purpose: str) -> str:
    """Return the name of a round's training, rerun or experiment."""
    return bounded_name(f"{round_id}-{suite}-{platform}-{purpose}")


def record_id(key: str, attempt: int) -> str:
    """Return the record id of an attempt, unique for every attempt."""
    return bounded_name(f"{key}-{attempt}")


def idempotency_key(suite: str, name: str) -> str:
    """Return the idempotency key that lets Prefect start one run.

    Prefect compares the keys of all suites. No name contains a slash, so that keys of two suites differ.
    """
    return f"{suite}/{name}"


class TrainingOrder(Model):
    """Order for one training on one platform, without secrets."""

    version: Label = __version__
    """Version of the controller's plumbline, which the worker compares with its own before it reads the rest."""
    platform: Name
    data: StoreUrl
    outbox: StoreUrl
    record_id: Name
    round_id: Name
    job: Name = "job"
    """Name of the training, equal for all attempts: they share its checkpoint."""
    attempt: int = Field(default=0, ge=0)
    nonce: str = Field(default="", max_length=128)
    """Secret value of this round, copied to the record, which proves that the record answers this order."""
    spec: Spec
    expected: Expected = Expected()
    experiment_id: Name | None = None
    ab: AbOrder | None = None
    """Order of an A/B, answered by one record; `None` for an ordinary training."""
    python: str = Field(default="", max_length=4096)
    """Interpreter of the training, or its environment's folder, on the worker; empty: the worker's own."""
    run_seconds: float = Field(gt=0)

    def foreign_fields(self, record: RunRecord) -> tuple[str, ...]:
        """Return the fields in which `record` contradicts the order."""
        experiment_id = record.experiment.experiment_id if record.experiment else None
        pairs = {
            "record_id": (self.record_id, record.record_id),
            "platform": (self.platform, record.platform),
            "round_id": (self.round_id, record.round_id),
            "attempt": (self.attempt, record.attempt),
            "nonce": (self.nonce, record.nonce),
            "spec_sha256": (self.spec.digest, record.spec_sha256),
            "experiment": (self.experiment_id, experiment_id),
            "ab": (
                self.ab.digest if self.ab else None,
                record.evidence.ab.order_sha256 if record.evidence.ab else None,
            ),
        }
        return tuple(name for name, (ordered, recorded) in pairs.items() if ordered != recorded)
