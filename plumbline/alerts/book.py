"""Alert state of a suite in the central store, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable

from plumbline.alerts.state import AlertState
from plumbline.central import CentralStore
from plumbline.digest import canonical_json
from plumbline.errors import UnavailableError
from plumbline.schema.base import read_model
from plumbline.stores import PreconditionFailedError

__all__ = ["AlertBook"]

_ATTEMPTS = 8


class AlertBook:
    """Document `alerts/SUITE.json` in the central store."""

    def __init__(self, central: CentralStore, suite: str) -> None:
        self._central = central
        self._key = f"alerts/{suite}.json"

    def read(self) -> tuple[AlertState, str | None]:
        """Return the state, and the etag for changing it."""
        pointer = self._central.read_pointer(self._key)
        if pointer is None:
            return AlertState(), None
        where = f"{self._central.store.url}/{self._key}"
        return read_model(AlertState, pointer[0], where=where), pointer[1]

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
