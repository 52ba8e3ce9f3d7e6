"""Messages of a shared search, in a platform's outbox.

Each is an object that the worker or the controller writes once.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import Field

from plumbline.central.outbox import record_key
from plumbline.errors import PlumblineError
from plumbline.schema.base import Model, Sha256, read_model
from plumbline.stores import Store, ensure_object, read_bytes
from plumbline.upgrade.trials import Trial, TrialOutcome

__all__ = ["Helper", "Mailbox", "Notice", "Question", "Reply", "Role", "SharedCulprits", "SharedResult"]

_MAX_BYTES = 4 << 20
_MANY = 10_000

Message = TypeVar("Message", bound=Model)


class Notice(Model):
    """Notice of a worker that begins a search."""

    baseline: Sha256
    """Digest of the changes and of what all of them do together: equal digests search for the same culprits."""


class Role(Model):
    """Controller's answer to a notice."""

    leader: str = ""
    """The platform to help; empty where this platform leads."""


class Helper(Model):
    """Platform that helps from now on."""

    platform: str


class Question(Model):
    """Trial for a helper.

    It names changes of the helper's own candidate, and contains no pins.
    """

    items: tuple[str, ...] = Field(max_length=_MANY)
    trial: Trial


class Reply(Model):
    """Answer of a helper.

    It guides the leader's search, and is evidence on no other platform.
    """

    outcome: TrialOutcome
    seconds: float = Field(default=0.0, ge=0)
    platform: str = ""


class SharedCulprits(Model):
    """One minimal failing set."""

    items: tuple[str, ...] = Field(max_length=_MANY)
    companions: tuple[str, ...] = Field(default=(), max_length=_MANY)


class SharedResult(Model):
    """Result of the leader's search.

    Without culprits, each platform searches alone.
    """

    culprits: tuple[SharedCulprits, ...] = Field(default=(), max_length=_MANY)
    rest: tuple[str, ...] = Field(default=(), max_length=_MANY)
    """The changes that are not accused; together they pass."""
    num_searched: int = Field(default=0, ge=0)


class Mailbox:
    """Mailbox of one search, for one attempt.

    A store that fails or has invalid content counts as silent: the platform can search alone.
    """

    def __init__(self, outbox: Store, record_id: str, number: int) -> None:
        self._outbox = outbox
        self._prefix = f"search/{number}"
        self.record_id = record_id
        self.number = number

    def _key(self, name: str) -> str:
        return record_key(self.record_id, f"{self._prefix}/{name}.json")

    def put(self, name: str, message: Model) -> bool:
        """Write a message; return whether that succeeded."""
        try:
            ensure_object(self._outbox, self._key(name), message.model_dump_json().encode(), verify=False)
        except PlumblineError:
            return False
        return True

    def get(self, kind: type[Message], name: str) -> Message | None:
        """Return a message, or `None` if none can be read."""
        key = self._key(name)
        try:
            data = read_bytes(self._outbox, key, max_bytes=_MAX_BYTES)
            return read_model(kind, data, where=f"{self._outbox.url}/{key}")
        except PlumblineError:
            return None
