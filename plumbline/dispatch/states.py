"""The words between a lane and whoever drives it: what is to be run, what is seen of it, what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Action", "ChildRun", "ChildState", "Job", "Limits", "Phase", "RecordKind", "Recorded", "Result", "View"]


class ChildState(Enum):
    """A flow run's state, as far as it matters here."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    """A worker has taken it, and has yet to start it."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CRASHED = "crashed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether it will not change any more."""
        return self not in (ChildState.SCHEDULED, ChildState.PENDING, ChildState.RUNNING)


class Phase(Enum):
    """Where a lane stands."""

    SEEKING = "seeking"
    WAITING = "waiting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SETTLING = "settling"
    DONE = "done"


class Action(Enum):
    """What the loop has to do for a lane before it looks again."""

    NONE = "none"
    START = "start"
    CANCEL = "cancel"
    FORCE = "force"
    """Nobody ended it: hold it for ended, so that its place in the work pool is free."""
    LOOK = "look"
    """See whether the outbox holds the complete record."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that no suite sets."""

    lost_seconds: float = 60.0
    """A running child that shows no sign of life for so long is lost; it sends one every few seconds."""
    look_seconds: float = 10.0
    """How often the outbox is looked at while a child runs: Prefect may have lost it, and yet it wrote its record."""
    cancel_seconds: float = 30.0
    """How long a cancelled child may take to end."""
    settle_seconds: float = 60.0
    """How long an unreachable outbox is asked whether the record is there."""
    gap_seconds: float = 10.0
    """The most that the time between two answers of the server counts as waiting for a worker: it may have hung."""
    away_seconds: float = 120.0
    """How long past the start deadline a server that does not answer is waited for."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training to dispatch."""

    key: str
    platform: str
    start_seconds: float
    run_seconds: float
    retries: int


@dataclass(frozen=True, slots=True)
class ChildRun:
    """What Prefect says of a dispatched run."""

    state: ChildState
    message: str = ""
    alive: str = ""
    """Changes with every sign of life."""
    retryable: bool = True
    """For a failure: whether it was one of infrastructure."""
    by_person: bool | None = None
    """Whether a person cancelled it, and no controller; `None` where the server does not know who asked."""


class RecordKind(Enum):
    """What an outbox holds under the name of one attempt's record."""

    ABSENT = "absent"
    COMPLETE = "complete"
    """The record that was ordered. It may tell of a training that failed."""
    INFRASTRUCTURE = "infrastructure"
    """The record that was ordered, of a training that its machine or a service ended."""
    FOREIGN = "foreign"
    """A record that answers another order."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was found of a record, and for a failure its error."""

    kind: RecordKind
    why: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What is seen of a lane now; `None` where nothing could be seen."""

    online: bool | None = None
    child: ChildRun | None = None
    recorded: Recorded | None = None
    left: int | None = None
    """The last attempt that a controller before this one dispatched."""
    refused: str = ""
    """Why it can never be dispatched."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a lane ended: with the attempt whose record is complete, or without one, and why."""

    attempt: int | None
    why: str = ""
    notes: tuple[str, ...] = ()
    attempts: int = 0
    waited_seconds: float = 0.0
    ran_seconds: float = 0.0
