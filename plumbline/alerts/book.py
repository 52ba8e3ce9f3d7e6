"""Alert state of a suite in the central store, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from plumbline.alerts.state import AlertState
from plumbline.central import CentralStore
from plumbline.digest import canonical_json, digest_bytes
from plumbline.errors import InvalidInputError, UnavailableError
from plumbline.schema.base import read_model
from plumbline.stores import PreconditionFailedError, ensure_object

_ATTEMPTS = 8


class AlertBook:
    """Document `alerts/SUITE.json` in the central store."""

    def __init__(self, central: CentralStore, suite: str) -> None:
        self._central = central
        self._suite = suite
        self._key = f"alerts/{suite}.json"

    def read(self) -> tuple[AlertState, str | None]:
        """Return the state, and the etag for changing it."""
        pointer = self._central.read_pointer(self._key)
        if pointer is None:
            return AlertState(), None
        return self._parse(pointer[0]), pointer[1]

    def repair(self) -> str:
        """Replace an unreadable state by an empty one; return a line about it, or "".

        The unreadable document is kept in `alerts/damaged/`. With an empty state, open troubles are alerted again.
        """
        pointer = self._central.read_pointer(self._key)
        if pointer is None:
            return ""
        data, etag = pointer
        try:
            _ = self._parse(data)
        except InvalidInputError as error:
            aside = f"alerts/damaged/{self._suite}-{digest_bytes(data)[:12]}.json"
            ensure_object(self._central.store, aside, data)
            with suppress(PreconditionFailedError):  # a concurrent writer repaired it
                self._central.swap_pointer(self._key, canonical_json(AlertState().to_json()), etag)
            kept = f"{self._central.store.url}/{aside}"
            return (
                f"{error}. The alert state was reset: open problems are alerted again. The document is kept as {kept}"
            )
        return ""

    def _parse(self, data: bytes) -> AlertState:
        return read_model(AlertState, data, where=f"{self._central.store.url}/{self._key}")

    def change(self, change: Callable[[AlertState], AlertState]) -> AlertState:
        """Apply a change to the current state; retry if a concurrent writer was faster."""
        for _ in range(_ATTEMPTS):
            state, etag = self.read()
            changed = change(state)
            if changed == state:
                return state
            try:
                self._central.swap_pointer(self._key, canonical_json(changed.to_json()), etag)
            except PreconditionFailedError:
                continue
            return changed
        raise UnavailableError("other writers keep changing the document", where=self._central.store.url, key=self._key)
